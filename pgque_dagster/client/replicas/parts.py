"""Copies large tables in parts, which are ranges of blocks. Each run continues the copy.

A copy begins with a tick. Each part is read in its own transaction. When all parts are read, a
second tick is made. The events between the two ticks turn the rows of the parts into the rows of
the table at the second one: docs/decisions/0018 has the proof.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from time import monotonic
from typing import Any

from ..batch import Batch
from ..errors import InvalidArgument
from ..models import ReadPlan
from ..operation import Call, Row
from ..plans import of_table, tick_range_plan
from ..session import Session
from .shape import Altered
from .snapshot import Snapshot
from .source import SourceTable
from .standing import Log

# A part takes less than a second, so a killed run loses little.
PART_BYTES = 8 * 2**20
# A table of up to this size is copied as a whole in one snapshot, which takes seconds.
WHOLE_BYTES = 256 * 2**20
# For how long a run reads parts of large tables, while the changes of the other tables wait.
SHARE_SECONDS = 120.0
# How many parts are read before they are recorded: first this many, then what these seconds allow.
WIDTH = 16
_SHORT, _LONG = 4, 12
_LOG_SECONDS = 60
_MB = 1_000_000
# Planning a query of a partitioned table locks all its partitions in each task. So they are read
# themselves, unless the role has rights on the table alone.
_EXTENT = """
select relation::bigint, array_agg(blocks), sum(size)::bigint
from (select case when bool_and(has_table_privilege(r.oid, 'select')
                                and has_schema_privilege(r.relnamespace, 'usage')
                                and not row_security_active(r.oid)) over ()
                  then r.oid else c.oid end as relation,
             pg_relation_size(r.oid) / current_setting('block_size')::int as blocks,
             pg_table_size(r.oid) as size
      from pg_class c
      cross join lateral (select relid from pg_partition_tree(c.oid) union select c.oid) p
      join pg_class r on r.oid = p.relid
      where c.oid = %s::regclass) p
group by 1 order by 1
"""
_NAMES = """
select c.oid::bigint, format('%%I.%%I', n.nspname, c.relname)
from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = any(%s::bigint[])
"""

# A table or partition, its first block that belongs to the part, and the block after the last one.
Part = tuple[int, int, int]

_CHECK = """do $$ begin
if exists (
    select
    from (select '{snapshot}'::pg_snapshot as begun, pg_current_snapshot() as mine) s
    where pg_snapshot_xmax(mine) < pg_snapshot_xmax(begun)
       or exists (select from pg_snapshot_xip(mine) x where pg_visible_in_snapshot(x, begun)))
then
    raise exception 'this server lags behind the tick at which the copy began'
        using hint = 'Let executors read the primary, or wait until the standby has caught up.';
end if;
end $$"""


class AlteredMeanwhile(Exception):
    """The table was altered while parts were read, so these parts do not count."""


@dataclass(frozen=True)
class Extent:
    """How large a table is.

    Attributes:
        blocks: the relations to read, with their numbers of blocks: each partition with its
            number, or the table with the numbers of all partitions.
        size: its size in bytes, with long values that are stored elsewhere, but without indexes.
    """

    blocks: Mapping[int, Sequence[int]]
    size: int

    @staticmethod
    def of(session: Session, source: SourceTable) -> "Extent":
        """Reads how large a table is."""

        def parse(rows: list[Row]) -> Extent:
            return Extent({oid: found for oid, found, _ in rows}, sum(row[2] for row in rows))

        return session.run(Call(_EXTENT, (source.name,), parse))

    @property
    def is_large(self) -> bool:
        """Whether the table is copied in parts, if it has a key."""
        return self.size > WHOLE_BYTES

    def parts(self) -> list[Part]:
        """Returns the parts, which together have all blocks.

        If the table itself is read, a part has the same blocks of all partitions, so the more
        partitions there are, the fewer blocks of each are in a part.
        """
        total = sum(map(sum, self.blocks.values()))
        most, found = max(1, PART_BYTES * total // max(1, self.size)), list[Part]()
        for relation, blocks in self.blocks.items():
            end = 0
            while count := sum(each > end for each in blocks):
                first, end = end, end + max(1, most // count)
                found.append((relation, first, end))
        return found


def share_ends() -> float:
    """Returns until when a run reads parts, in the time of `monotonic`."""
    return monotonic() + SHARE_SECONDS


def seen_after(snapshot: str) -> str:
    """Returns a statement that fails unless its transaction sees all that a snapshot sees.

    A standby may lag behind the tick at which the copy began. A part of it would lack changes that
    no later event names.

    Args:
        snapshot: the snapshot, as `pg_snapshot` prints it: `xmin:xmax:in progress`.
    """
    return _CHECK.format(snapshot=snapshot)


def united(parts: Sequence[Part], tasks: int) -> list[Part]:
    """Returns the same blocks as fewer parts, about one per task."""
    share, found = -(-len(parts) // tasks), list[Part]()
    for place, (relation, first, end) in enumerate(parts):
        if place % share and found[-1][::2] == (relation, first):
            found[-1] = (relation, found[-1][1], end)
        else:
            found.append((relation, first, end))
    return found


def from_clauses(session: Session, source: SourceTable, parts: Sequence[Part]) -> list[str]:
    """Returns the FROM clause of each of some parts of a table.

    Raises:
        InvalidArgument: if a partition was dropped in the meantime.
    """
    names: dict[int, str] = session.run(Call(_NAMES, ([oid for oid, *_ in parts],), dict))
    if not names.keys() >= {oid for oid, *_ in parts}:
        raise InvalidArgument(
            f"a partition of {source.name} was dropped while it was copied",
            "Run the batch again: it copies the table in its new state.",
        )
    return [
        f"{names[oid]} where ctid >= '({first},0)' and ctid < '({end},0)'"
        for oid, first, end in parts
    ]


def rows_of_partitions(
    session: Session, source: SourceTable, relations: Set[str]
) -> list[str] | None:
    """Returns FROM clauses with the rows of partitions; None if this role may not read these."""
    extent, oids = Extent.of(session, source), {int(oid) for oid in relations}
    if not oids <= extent.blocks.keys():
        return None
    return from_clauses(session, source, [part for part in extent.parts() if part[0] in oids])


class PartedCopy(ABC):
    """A copy of a table in parts, found or begun. Subclasses read and store the rows.

    Args:
        batch: the batch whose run continues it.
        source: the table.
        copies: the copies of the table that are kept. Each has `begun`, how it began (empty if it
            did not), the parts that are `done`, their `rows` and `size`, and `begin`.
        new: begins a copy if none of them can continue.
        reason: why the table is copied, if the copy begins.
        noted_tick: the tick of the copy that an ack has noted, if any. Another copy is continued
            only by the attempts at the batch with which it began.
        log: gets the progress.
        more: what else is recorded when the copy begins.

    Raises:
        LeaseLost: if another owner took the batch over.
    """

    def __init__(
        self,
        batch: Batch,
        source: SourceTable,
        copies: Sequence[Any],
        new: Any,
        reason: str,
        noted_tick: int | None,
        log: Log,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._claim, self._source, self._log = batch, source, log
        # Parts of a copy that began differently have other rows.
        origin = {
            "incarnation": str(batch.incarnation),
            "shape": source.shape,
            "version": version("pgque-dagster"),
        }
        self._kept: Any = self._find(copies, origin, noted_tick)
        if self._kept is None:
            self._kept = new
            self._begin(origin, reason, more or {})
        self._parts: list[Part] = self._kept.begun["parts"]
        # When this run began to read, and how many parts and rows there were then.
        self._start = (monotonic(), len(self._kept.done), self._kept.rows)

    @property
    def reason(self) -> str:
        """Why the table is copied."""
        return str(self._kept.begun["reason"])

    @property
    def tick_id(self) -> int:
        """The tick after which the copy needs the events."""
        return int(self._kept.begun["tick_id"])

    @property
    def progress(self) -> str:
        """How far the copy is, how fast this run reads, and when it will have read all parts."""
        kept, done, count = self._kept, len(self._kept.done), len(self._parts)
        told = f"{done} of {count} parts, {kept.rows} rows, {kept.size / _MB:.0f} MB"
        began, before, rows = self._start
        if done in (before, count):
            return told
        seconds = monotonic() - began
        end = datetime.now(UTC) + timedelta(seconds=seconds / (done - before) * (count - done))
        rate = f"{(kept.rows - rows) / seconds:.0f} rows a second"
        return f"{told}, {rate}, all parts will be read at {end:%Y-%m-%d %H:%M} UTC"

    def read(self, deadline: float) -> bool:
        """Reads parts until a time of `monotonic`, and at least some. Returns whether all are read.

        Raises:
            LeaseLost: if another owner took the batch over.
        """
        left = [part for part in range(len(self._parts)) if part not in self._kept.done]
        self._log(f"{self._source.name}: {self.progress}")
        count, width = len(left), WIDTH
        told = now = monotonic()
        while left and (now < deadline or len(left) == count):
            try:
                self._read_parts(left[:width])
            except AlteredMeanwhile:
                self._log(f"{self._source.name} was altered; the next run reads these parts again")
                break
            left, before, now = left[width:], now, monotonic()
            if now - before < _SHORT:
                width *= 2
            elif now - before > _LONG:
                width = max(1, width // 2)
            if left and (now - told > _LOG_SECONDS or now >= deadline):
                told = now
                self._log(f"{self._source.name}: {self.progress}")
        if left:
            # The next batch continues the copy, and need not wait for the ticker.
            self._tick()
            kept = self._claim.info().seq_end - self._kept.begun["event_id"]
            self._log(f"about {kept} events are kept until {self._source.name} is copied")
        return not left

    @abstractmethod
    def _read_parts(self, parts: Sequence[int]) -> None:
        """Reads parts, confirms and records them."""

    def _confirm(self) -> None:
        """Renews the lease, and checks that the table is still as it was when parts were read.

        The lease's commit makes the transactions that the parts have seen survive a crash.

        Raises:
            AlteredMeanwhile: if its shape changed, possibly while they were read.
        """
        claim, source = self._claim, self._source
        claim.renew()
        if SourceTable.find(claim.session, source.spec, claim.queue).shape != source.shape:
            raise AlteredMeanwhile

    def _find(
        self, copies: Sequence[Any], origin: Mapping[str, str], noted_tick: int | None
    ) -> Any:
        """Returns the copy with the most parts, if it can continue."""
        mine = [
            each
            for each in copies
            if {**each.begun.get("origin", {}), "shape": self._source.shape} == origin
            and (
                each.begun["tick_id"] == noted_tick
                or each.begun["batch_id"] == self._claim.batch_id
            )
        ]
        usable = [each for each in mine if self._is_kept(each.begun["tick_id"])]
        self._claim.renew()
        found = max(usable, key=lambda each: len(each.done), default=None)
        return found if found and self._follow(found.begun) else None

    def _follow(self, begun: Mapping[str, Any]) -> bool:
        """Returns whether the parts are still valid for the table as it is now."""
        shape, source = begun["origin"]["shape"], self._source
        if shape == source.shape:
            return True
        altered = Altered.since(shape, source)
        # All that was written under other names is committed before this tick.
        tick_id, _ = self._tick()
        slices = of_table(self._plan(tick_id, begun["tick_id"]).slices, source.name)
        readings = altered.readings(self._claim.session, slices)
        if not altered.keeps_rows or readings is None:
            return False
        if not altered.has_all_rows(self._claim.session, source.name, slices):
            return False
        self._source = replace(source, readings=readings)
        if told := "; ".join(altered.told):
            self._log(f"{source.name} keeps the parts that are done: {told}")
        return True

    def _begin(self, origin: object, reason: str, more: Mapping[str, Any]) -> None:
        """Begins a copy. Its tick must come before the table's size is read."""
        self._log(f"copying {self._source.name} in parts: {reason}")
        tick_id, snapshot = self._tick()
        self._kept.begin(
            origin=origin,
            tick_id=tick_id,
            snapshot=snapshot,
            batch_id=self._claim.batch_id,
            event_id=self._claim.info().seq_end,
            reason=reason,
            parts=Extent.of(self._claim.session, self._source).parts(),
            **more,
        )

    def _is_kept(self, tick_id: int) -> bool:
        """Returns whether the events after a tick still exist."""
        with suppress(InvalidArgument):
            self._plan(tick_id, tick_id)
            return True
        return False

    def _plan(self, to_tick: int, from_tick: int | None = None, slices: int = 1) -> ReadPlan:
        """Returns a plan to read the events since the copy began, without those delivered again."""
        from_tick = self.tick_id if from_tick is None else from_tick
        return self._claim.session.run(
            tick_range_plan(self._claim.queue, from_tick, to_tick, slices)
        )

    def _tick(self) -> tuple[int, str]:
        """Makes a tick. Returns it and its snapshot."""
        url, queue = self._claim.session.url, self._claim.queue
        with Snapshot.of_tick(url, queue) as (tick_id, snapshot):
            return tick_id, snapshot.transactions
