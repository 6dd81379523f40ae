"""Limits the time of the work on a batch.

The body runs in its own thread, and the step stops waiting for it when the time is up. Spark's jobs
are cancelled by a tag, both those of the body and those that store its output.
"""

import contextvars
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ...client import PgqueError

_CANCEL_SECONDS = 1.0


class ComputeTimedOut(PgqueError):
    """The work on a batch exceeded its time limit; the batch was released."""


class TimeLimit:
    """Limits the time of its block.

    Args:
        spark: the session whose jobs to cancel.
        limit: how long the block may take; None for no limit.
        name: the name of the work, for the error.
    """

    def __init__(self, spark: SparkSession, limit: timedelta | None, name: str) -> None:
        self._spark = spark
        self._limit = limit
        self._name = name
        self._tag = f"pgque-{uuid.uuid4().hex}"
        self._until = 0.0
        self._left = threading.Event()
        self._body: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Starts the clock."""
        if self._limit is not None:
            self._until = time.monotonic() + self._limit.total_seconds()
            self._add_tag()
            threading.Thread(target=self._cancel_when_over, name=self._tag, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stops the clock."""
        self._left.set()
        if self._limit is not None:
            self._remove_tag()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._limit is not None and time.monotonic() >= self._until

    def iterate(self, body: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yields what the body yields, until the time is up.

        If the body continues after that, its thread is left running and nothing waits for it.

        Raises:
            ComputeTimedOut: if the body does not yield its next result in time.
        """
        if self._limit is None:
            yield from body()
            return
        wanted: queue.Queue[bool] = queue.Queue()
        made: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._body = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._produce, body, wanted, made),
            name=f"body of {self._name}",
            daemon=True,
        )
        self._body.start()
        try:
            while True:
                wanted.put(True)
                what, value = self._next(made)
                if what == "end":
                    return
                if what == "error":
                    if self.is_over:
                        raise self._error() from value
                    raise value
                yield value
        finally:
            wanted.put(False)

    def _add_tag(self) -> None:
        """Tags the Spark jobs that the calling thread starts from now on."""
        if is_remote():
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _remove_tag(self) -> None:
        if is_remote():
            self._spark.removeTag(self._tag)
        else:
            self._spark.sparkContext.removeJobTag(self._tag)

    def _cancel_when_over(self) -> None:
        self._left.wait(self._until - time.monotonic())
        # Repeatedly, because the body may start another job after one is cancelled.
        # Errors are ignored, because the session may end before an abandoned body does.
        with suppress(Exception):
            while not (self._left.is_set() and self._is_body_done()):
                if is_remote():
                    self._spark.interruptTag(self._tag)
                else:
                    self._spark.sparkContext.cancelJobsWithTag(self._tag)
                time.sleep(_CANCEL_SECONDS)

    def _is_body_done(self) -> bool:
        return self._body is None or not self._body.is_alive()

    def _produce(
        self,
        body: Callable[[], Iterator[Any]],
        wanted: "queue.Queue[bool]",
        made: "queue.Queue[tuple[str, Any]]",
    ) -> None:
        try:
            # Tags belong to a thread.
            self._add_tag()
            results = body()
            while wanted.get():
                for value in results:
                    made.put(("value", value))
                    break
                else:
                    made.put(("end", None))
                    return
            results.close()  # type: ignore[attr-defined]
        except BaseException as error:
            made.put(("error", error))

    def _next(self, made: "queue.Queue[tuple[str, Any]]") -> tuple[str, Any]:
        try:
            return made.get(timeout=max(0.0, self._until - time.monotonic()))
        except queue.Empty:
            raise self._error() from None

    def _error(self) -> ComputeTimedOut:
        return ComputeTimedOut(
            f"{self._name} did not finish within {self._limit}",
            "The batch is free for another attempt; raise timeout= if the work needs this long.",
        )
