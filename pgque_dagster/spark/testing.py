"""A batch made of rows, for tests of functions that take a `SparkBatch`; needs no server."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession

from ..client.encoding import Payload
from ..client.errors import InvalidArgument
from ..client.models import BatchInfo, Event, Lease, Message, ReadPlan
from ..client.producing import row_of
from ..client.read_batch import ReadBatch
from .batch import SparkBatch
from .reading import arrow

_TICK = 1
_SPAN = timedelta(seconds=1)


def batch_from_rows(
    spark: SparkSession,
    rows: Iterable[Payload | Event | Message],
    *,
    queue: str = "queue",
    consumer: str = "consumer",
) -> SparkBatch:
    """Makes a batch of rows, to test a function that takes a batch. It needs no server.

    The function reads it like any batch. What it passes to `nack` and `dead_letter`, and the
    malformed events of `payload` and `changes`, are counted in `batch.claim.requested`. Operations
    that need the database raise: an ack, a step of `before_ack`, and a sink's `write`.

    Args:
        spark: the session; `local[1]` is enough.
        rows: the events, which get the ids 1, 2, …: payloads, as `client.send` takes them; an
            `Event`, which has a type and a key as well; or a `Message`, which also has its time and
            its number of deliveries, and keeps its own id.
        queue: the queue's name.
        consumer: the consumer's name.

    Raises:
        InvalidArgument: if a payload cannot be expressed as JSON.

    Example:
        .. code-block:: python

            def test_revenue(spark):
                batch = batch_from_rows(spark, [{"product": "tea", "total": 4.5}])
                assert revenue(batch).collect() == [("tea", 4.5)]
    """
    now = datetime.now(UTC)
    events = [_columns(number, row, now) for number, row in enumerate(rows, start=1)]
    schema = arrow.arrow_schema(arrow.EVENT_COLUMNS)
    return _BatchOfRows(
        spark, _Rows(queue, consumer, now, len(events)), pa.Table.from_pylist(events, schema)
    )


def _columns(number: int, row: Payload | Event | Message, now: datetime) -> dict[str, Any]:
    """Returns the columns of an event as a server's batch has them."""
    kind, data, *extras = row_of(row, "default")
    columns = {"ev_id": number, "ev_time": now, "ev_txid": number, "ev_type": kind, "ev_data": data}
    columns |= {f"ev_extra{n}": value for n, value in enumerate(extras, start=1)}
    if isinstance(row, Message):
        columns |= {"ev_id": row.msg_id, "ev_time": row.created_at, "ev_retry": row.retry_count}
    return columns


class _NoDatabase:
    """Replaces the session of a database."""

    def run(self, call: object) -> NoReturn:
        """Refuses operations that need the database."""
        raise InvalidArgument(
            "a batch made of rows has no database",
            "Test what the function returns; to store or ack, claim a batch from a server.",
        )

    def incarnation(self) -> NoReturn:
        """Refuses, because only a database has an incarnation."""
        self.run(None)


class _Rows(ReadBatch):
    """The claim of a batch of rows, which has no other owner."""

    keeper = None

    def __init__(self, queue: str, consumer: str, now: datetime, events: int) -> None:
        lease = Lease(1, "test", 1, now, _TICK, _TICK + 1)
        super().__init__(_NoDatabase(), queue, consumer, lease)
        span = (now - _SPAN, now, _TICK, _TICK + 1, timedelta(), 0, events)
        self._info = BatchInfo(queue, consumer, *span)

    def info(self) -> BatchInfo:
        """Returns the ticks, times and event ids."""
        return self._info

    def renew(self) -> None:
        """Does nothing: there is no lease to extend."""

    def plan_call(self, max_slices: int) -> NoReturn:
        """Refuses: there is no table to read."""
        _NoDatabase().run(None)

    def history_call(self, max_events: int) -> None:
        """Returns None: the consumer finished nothing before."""


class _BatchOfRows(SparkBatch):
    """A batch whose events are a table."""

    def __init__(self, spark: SparkSession, claim: _Rows, events: pa.Table) -> None:
        super().__init__(spark, claim, "")
        self._events = events

    @property
    def is_small(self) -> bool:
        return True

    @cached_property
    def plan(self) -> ReadPlan:
        """The sizes and times; there is nothing to read."""
        times = sorted(self._events["ev_time"].to_pylist()) or [None]
        return ReadPlan(events=len(self._events), oldest=times[0], newest=times[-1])

    def _read_here(self, columns: Sequence[str]) -> pa.Table:
        return self._events.select(columns)
