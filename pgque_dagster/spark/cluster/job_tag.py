"""A tag by which Spark jobs are cancelled."""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

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
