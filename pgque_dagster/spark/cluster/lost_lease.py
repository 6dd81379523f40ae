"""Cancels the Spark jobs of an attempt that lost its lease.

It only saves work: such an attempt cannot publish or ack, whether its jobs are cancelled or not.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ...client.read_batch import ReadBatch

_CANCEL_SECONDS = 1.0


class JobTag:
    """A tag for the jobs of one piece of work.

    Args:
        spark: the session of the jobs.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tag = f"pgque-{uuid.uuid4().hex}"

    def add(self) -> None:
        """Tags the jobs that the calling thread starts from now on."""
        if is_remote():
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def remove(self) -> None:
        """Ends what `add` began."""
        if is_remote():
            self._spark.removeTag(self._tag)
        else:
            self._spark.sparkContext.removeJobTag(self._tag)

    def cancel_until(self, is_done: Callable[[], bool]) -> None:
        """Cancels the jobs with the tag, until the work is done.

        Repeatedly, because the work may start another job after one is cancelled.

        Args:
            is_done: says whether the work is done.
        """
        # Errors are ignored, because the session may end before an abandoned body does.
        with suppress(Exception):
            while not is_done():
                if is_remote():
                    self._spark.interruptTag(self._tag)
                else:
                    self._spark.sparkContext.cancelJobsWithTag(self._tag)
                time.sleep(_CANCEL_SECONDS)


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
