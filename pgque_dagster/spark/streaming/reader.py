"""Structured Streaming over a queue: `spark.readStream.format("pgque")`, with ticks as offsets.

A micro-batch is the consumer's open batch between two ticks of Spark's checkpoint. The checkpoint
decides which events are finished. The consumer's position follows when Spark passes an offset as
the start of the next micro-batch, because only then has the sink stored everything before it.
`commit` alone is not enough: Spark does not call it for the last micro-batch.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...client.errors import InvalidArgument, PgqueError
from ...client.ticks import Tick
from ..options import StreamOptions
from ..reading import arrow
from .lease import StreamLease


class CheckpointMismatch(PgqueError):
    """The checkpoint belongs to another queue, consumer, or registration of the consumer."""


@dataclass(frozen=True)
class TickOffset:
    """An offset of Spark's checkpoint: a tick, and its queue and consumer."""

    queue: str
    consumer: str
    registration: int
    tick: int
    fingerprint: str | None

    @property
    def at(self) -> Tick:
        """The tick."""
        return Tick(self.tick, self.fingerprint)

    @classmethod
    def parse(cls, offset: Mapping[str, Any], options: StreamOptions) -> "TickOffset":
        """Reads an offset of this query.

        Raises:
            CheckpointMismatch: if it is from another queue or consumer, or not from this source.
        """
        try:
            read = cls(**offset)
        except TypeError as error:
            raise CheckpointMismatch(
                f"the checkpoint holds no tick, but {dict(offset)}",
                "It was written by another source: choose another checkpointLocation.",
            ) from error
        if (read.queue, read.consumer) != (options.queue, options.consumer):
            raise CheckpointMismatch(
                f"the checkpoint belongs to consumer {read.consumer} on queue {read.queue}, not to "
                f"consumer {options.consumer} on queue {options.queue}",
                "Give each query its own checkpointLocation.",
            )
        return read


class PgqueStreamReader(DataSourceStreamReader):
    """Plans micro-batches of all available events, because Spark before 4.2 has no limits.

    The lease stays in the process that plans. Executors get only the options and partitions.

    Args:
        options: Spark's options. They are parsed at the first call, because Spark would hide an
            earlier error about them behind its own error.
    """

    # Whether micro-batches can be limited.
    is_limited = False

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._opened: StreamLease | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the consumer's position, for a query without a checkpoint."""
        return self._offset(self._lease.position().start)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Returns the newest tick."""
        position = self._lease.position()
        return self._offset(self._lease.next_tick(position.start.id, None) or position.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Opens a micro-batch and returns one partition per slice, and at least one."""
        first, last = self._parse(start), self._parse(end)
        if last.tick < first.tick:
            raise CheckpointMismatch(
                f"consumer {first.consumer} on queue {first.queue} stands at tick {first.tick}, "
                f"past the end of the checkpoint's micro-batch, tick {last.tick}",
                "Another reader moved it. Begin with a new checkpointLocation and output location.",
            )
        if last.tick == first.tick:
            # Spark 4.0 plans this before it repeats a micro-batch that may not be stored.
            return []
        self._lease.open(first.at, last.at)
        slices = self._lease.read_plan(self._options.slices).slices
        return [InputPartition(part) for part in slices or (None,)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one slice."""
        if partition.value is None:
            return iter(())
        url = self._options.address.resolve()
        return arrow.read_slice(url, partition.value, self._options.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Finishes the events that the sink has stored."""
        self._finish(self._parse(end))

    def stop(self) -> None:
        """Releases the consumer."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @cached_property
    def _options(self) -> StreamOptions:
        options = StreamOptions.parse(self._given)
        if options.max_events is not None and not self.is_limited:
            raise InvalidArgument(
                f"PySpark {pyspark.__version__} cannot limit micro-batches to "
                f"{options.max_events} events",
                "Leave max_events out, or use PySpark 4.2 or newer.",
            )
        return options

    @property
    def _lease(self) -> StreamLease:
        if self._opened is None:
            options = self._options
            self._opened = StreamLease(
                options.address.resolve(),
                options.queue,
                options.consumer,
                timedelta(seconds=options.lease_seconds),
            )
            _stop_on_termination()
        return self._opened

    def _finish(self, done: TickOffset) -> None:
        if not self._lease.position().start.fits(done.at):
            self._lease.open(done.at, done.at)

    def _offset(self, tick: Tick) -> dict[str, Any]:
        options, registration = self._options, self._lease.position().registration_id
        return asdict(
            TickOffset(options.queue, options.consumer, registration, tick.id, tick.fingerprint)
        )

    def _parse(self, offset: Mapping[str, Any]) -> TickOffset:
        read = TickOffset.parse(offset, self._options)
        if read.registration != self._lease.position().registration_id:
            raise CheckpointMismatch(
                f"consumer {read.consumer} on queue {read.queue} was registered again after this "
                "checkpoint was written, so events between the two may be gone",
                "Begin with a new checkpointLocation and output location.",
            )
        return read


def _stop_on_termination() -> None:
    """Makes SIGTERM, with which Spark ends the planning process, exit so that `stop` is called."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
