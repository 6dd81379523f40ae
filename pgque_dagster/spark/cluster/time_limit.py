"""Limits the time of the work on a batch.

The body runs in its own thread, and the step stops waiting for it when the time is up. Spark's jobs
are cancelled by a tag, both those of the body and those that store its output.
"""

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Self

from pyspark.sql import SparkSession

from ...client import PgqueError
from .lost_lease import JobTag


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
        self._limit = limit
        self._name = name
        self._tag = JobTag(spark)
        self._until = 0.0
        self._left = threading.Event()
        self._body: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Starts the clock."""
        if self._limit is not None:
            self._until = time.monotonic() + self._limit.total_seconds()
            self._tag.add()
            threading.Thread(target=self._cancel_when_over, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stops the clock."""
        self._left.set()
        if self._limit is not None:
            self._tag.remove()

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

    def _cancel_when_over(self) -> None:
        self._left.wait(self._until - time.monotonic())
        self._tag.cancel_until(lambda: self._left.is_set() and self._is_body_done())

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
            self._tag.add()
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
