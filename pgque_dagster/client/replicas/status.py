"""The state of replicas, as recorded in the database of their tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

from ..operation import Call, Steps, nothing
from ..queues import check_queue
from ..ranges import age
from .outcome import Replicated

_COLUMNS: LiteralString = """
select queue_name, consumer_name, table_name, location, row_count, counted_tick, stored_tick,
       clock_timestamp() - stored_at, copied_tick, batches, verified_tick,
       clock_timestamp() - verified_at, verified_problem, clock_timestamp() - tried_at, tried_copy,
       unverified, failure, clock_timestamp() - failed_at, is_copied, copying,
       jsonb_path_query_array(parts, '$.*'), left_at is not null, doubt, doubt_tick,
       clock_timestamp() - doubted_at
from pgque.replicas(%s)"""
_OF_TABLE: LiteralString = """
 where consumer_name = %s and table_name = coalesce(pgque.captured_name(%s), %s)"""


@dataclass(frozen=True)
class ReplicaStatus:
    """The state of a table's replica. None means unknown, or that it never happened.

    Attributes:
        queue: the queue of the table's changes.
        consumer: the consumer that replicates it.
        table: schema and name.
        location: where the replica is.
        rows: how many rows it has.
        counted_tick: the tick at which it had them; None for now.
        stored_tick: the last tick of the last batch that changed it.
        stored_age: how long ago that was.
        copied_tick: the last tick of the batch that copied the table last.
        batches: how many batches have changed it since the last comparison.
        verified_tick: the tick at which it was compared with its table.
        verified_age: how long ago that was.
        verified_problem: how it differed; None if it was equal.
        tried_age: how long ago the last attempt to compare it was.
        tried_copy: the `copied_tick` at that time.
        unverified: why that attempt compared nothing.
        failure: why it is set apart from the batches of its consumer.
        failed_age: for how long it has done so.
        is_copied: whether batches are applied; if not, the next one copies the table.
        copying: how far a copy in parts is; None without one.
        parts: the last comparison of each part, if it is compared in parts.
        is_left: whether the consumer no longer replicates it, but it is still captured.
        doubt: why its rows may differ from the table's, until a comparison finds that none do.
        doubt_tick: the last tick of the batch since which they may, or once could.
        doubt_age: for how long they may.
    """

    queue: str
    consumer: str
    table: str
    location: str | None = None
    rows: int | None = None
    counted_tick: int | None = None
    stored_tick: int | None = None
    stored_age: timedelta | None = None
    copied_tick: int | None = None
    batches: int = 0
    verified_tick: int | None = None
    verified_age: timedelta | None = None
    verified_problem: str | None = None
    tried_age: timedelta | None = None
    tried_copy: int | None = None
    unverified: str | None = None
    failure: str | None = None
    failed_age: timedelta | None = None
    is_copied: bool = False
    copying: str | None = None
    parts: Sequence[dict[str, Any]] | None = None
    is_left: bool = False
    doubt: str | None = None
    doubt_tick: int | None = None
    doubt_age: timedelta | None = None

    @property
    def since_tick(self) -> int | None:
        """The tick since which comparisons count: of the last copy, or since it may differ."""
        return max((x for x in (self.copied_tick, self.doubt_tick) if x is not None), default=None)

    @property
    def compared(self) -> list[dict[str, Any]]:
        """The last comparison of each part, since the last copy, or since it may differ."""
        mine = [each for each in self.parts or () if each["copy"] == self.since_tick]
        return sorted(mine, key=lambda each: int(each["number"]))

    @property
    def is_partial(self) -> bool:
        """Whether it is compared in parts, some of which were not compared since the last copy."""
        return any(len(self.compared) < each["of"] for each in self.parts or ())

    @property
    def comparing(self) -> str | None:
        """Which parts were compared, and when; None if it is not compared in parts."""
        if not self.parts:
            return None
        told = (
            f"{len(self.compared)} of {self.parts[0]['of']} parts were compared since the last copy"
        )
        if not self.compared:
            return told
        oldest = min(self.compared, key=lambda each: int(each["tick"]))
        ago = age(datetime.now(UTC) - datetime.fromisoformat(oldest["at"]))
        return (
            f"{told}, part {oldest['number']} least recently, at tick {oldest['tick']}, {ago} ago"
        )

    @property
    def state(self) -> str:
        """The state in a word or two: `equal`, unless something is wrong or unknown."""
        if self.is_left:
            return "taken out"
        if self.failure is not None:
            return "apart"
        if self.verified_problem is not None:
            return "different"
        if self.copying is not None:
            return "copying"
        if not self.is_copied:
            return "to be copied"
        if self.doubt is not None:
            return "may differ"
        if self.verified_tick is None or self.unverified is not None or self.is_partial:
            return "not verified"
        return "equal"

    @property
    def verdict(self) -> str:
        """What the last comparison found, and when: `equal at tick 571, 2h 5m ago, ...`."""
        told = "never compared with its table"
        if self.verified_tick is not None and self.verified_age is not None:
            found = "equal" if self.verified_problem is None else "different"
            told = (
                f"{found} at tick {self.verified_tick}, {age(self.verified_age)} ago"
                f"{'' if self.compared else f', {self.batches} batches since'}"
            )
            if self.verified_problem is not None:
                told += f": {self.verified_problem}"
        if self.doubt is not None and self.doubt_age is not None:
            told += f"; may differ since tick {self.doubt_tick}, {age(self.doubt_age)} ago, until "
            told += f"all rows are found equal: {self.doubt}"
        if self.comparing is not None:
            told += f"; {self.comparing}"
        # A table that is set apart is not compared, for that reason.
        if self.unverified is not None and self.failure is None:
            told += f"; the last attempt compared nothing: {self.unverified}"
        return told

    def after(self, done: Replicated, tick_id: int) -> "ReplicaStatus":
        """Returns the state after a batch that ends at a tick, as its ack records it."""
        rows, counted = self.rows, self.counted_tick
        if done.is_copied:
            rows, counted = (None if done.resumed else done.rows), None
        elif done.is_stored and done.added is None and counted is None:
            counted = self.stored_tick
        elif done.is_stored and done.added is not None and counted is None and rows is not None:
            rows += done.added
        return replace(
            self,
            location=done.location,
            rows=rows,
            counted_tick=counted,
            stored_tick=tick_id if done.is_stored else self.stored_tick,
            copied_tick=tick_id if done.is_copied else self.copied_tick,
            batches=self.batches + done.is_stored,
            is_copied=True,
            doubt=done.doubt or (None if done.is_copied else self.doubt),
            doubt_tick=tick_id if done.doubt else self.doubt_tick,
            doubt_age=timedelta(0) if done.doubt and not self.doubt else self.doubt_age,
        )


def replicas(queue: str | None = None) -> Steps[list[ReplicaStatus]]:
    """Returns the state of table replicas: of the consumers of a queue, or of all consumers."""
    if queue is not None:
        yield check_queue(queue)
    found: list[ReplicaStatus] = yield Call(
        _COLUMNS, (queue,), lambda rows: [ReplicaStatus(*row) for row in rows]
    )
    return found


def name_replicas(queue: str, consumer: str, tables: Sequence[str]) -> Call[None]:
    """Records which tables a consumer replicates, before its first batch does."""
    return Call(
        "select pgque.name_replicas(%s, %s, (select array_agg(coalesce("
        "pgque.captured_name(t), t)) from unnest(%s::text[]) t))",
        (queue, consumer, list(tables)),
        nothing,
    )


def replica_of_table(queue: str, consumer: str, table: str) -> Call[ReplicaStatus | None]:
    """Returns the state of one table's replica; None if nothing is recorded about it."""
    return Call(
        _COLUMNS + _OF_TABLE,
        (queue, consumer, table, table),
        lambda rows: ReplicaStatus(*rows[0]) if rows else None,
    )
