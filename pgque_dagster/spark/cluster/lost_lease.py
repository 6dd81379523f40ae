"""Cancels the Spark jobs of an attempt that lost its lease.

This only saves work: such an attempt can neither publish nor ack, even if its jobs go on.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ...client.read_batch import ReadBatch

_CANCEL_SECONDS = 1.0


@contextmanager
def cancelled_without_lease(spark: SparkSession, claim: ReadBatch) -> Iterator[None]:
    """Cancels the jobs of the block when the lease of a claim that is kept alive is lost.

    Raises:
        LeaseLost: if the block failed because another owner took the batch over.
        BatchNotOpen: if the block failed because the batch was acked.
    """
    keeper = claim.keeper
    if keeper is None:
        yield
        return
    tag, left = f"pgque-{uuid.uuid4().hex}", threading.Event()
    interrupt: Callable[[str], object]
    if is_remote():
        add, remove, interrupt = spark.addTag, spark.removeTag, spark.interruptTag
    else:
        # A classic session's interruptTag knows only the tags of the thread that calls it.
        context = spark.sparkContext
        add, remove = context.addJobTag, context.removeJobTag
        interrupt = context.cancelJobsWithTag

    def cancel() -> None:
        # Errors are ignored, because the session may end before the block does.
        with suppress(Exception):
            is_lost = keeper.wait_until_lost(left)
            # Repeatedly, because the block may start another job after one is cancelled.
            while is_lost and not left.is_set():
                interrupt(tag)
                left.wait(_CANCEL_SECONDS)

    threading.Thread(target=cancel, name=f"pgque-jobs-{claim.batch_id}", daemon=True).start()
    add(tag)
    try:
        yield
    except Exception:
        if keeper.lost is not None:
            raise keeper.lost from None
        raise
    finally:
        left.set()
        remove(tag)
