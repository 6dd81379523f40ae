"""Cancels the Spark jobs of an attempt that lost its lease.

It only saves work: such an attempt cannot publish or ack, whether its jobs are cancelled or not.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from ...client.read_batch import ReadBatch
from .job_tag import JobTag


@contextmanager
def cancelled_without_lease(spark: SparkSession, claim: ReadBatch) -> Iterator[None]:
    """Cancels the jobs of the block once the lease of a claim that is kept alive is lost.

    Args:
        spark: the session of the jobs.
        claim: the claim.

    Raises:
        LeaseLost: if another owner took the batch over, and the block failed for that.
        BatchNotOpen: if the batch was acked meanwhile, and the block failed for that.
    """
    keeper = claim.keeper
    if keeper is None:
        yield
        return
    tag, left = JobTag(spark), threading.Event()

    def cancel() -> None:
        if keeper.wait_until_lost(left):
            tag.cancel_until(left.is_set)

    threading.Thread(target=cancel, name=f"pgque-jobs-{claim.batch_id}", daemon=True).start()
    tag.add()
    try:
        yield
    except Exception:
        if keeper.lost is not None:
            raise keeper.lost from None
        raise
    finally:
        left.set()
        tag.remove()
