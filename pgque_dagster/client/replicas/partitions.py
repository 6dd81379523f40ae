"""Partitions that are added or removed, and what a replica has to read for them.

A new partition has triggers when its table's shape is read. If nothing was ever written to it by
then, and no event has a row that belongs to it, nothing is missing.

Otherwise, a tick is made, and the keys of the table and the rows of new partitions are read in its
snapshot. They are applied together with the events up to the tick, including those after the batch:

- A row of another partition was written last by an event, or before the last copy. No later event
  has its key, because only one partition may have it, and one that left its table sends nothing.
- A row of a new partition is read.
- A key that the table lacks is gone, whatever events say: its partition was detached or dropped.

So the replica has the rows of the snapshot, as after a copy, and is recorded as one.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from ..errors import DatabaseError, passes
from ..models import Slice
from ..operation import Call
from ..plans import where
from ..session import Session

ATTACHED = "partitions were created, attached, detached or dropped"
_WRITTEN = sql.SQL("ev_type in ('insert', 'update')")
_BOUNDS = """
select string_agg(format('(%%s)', coalesce(pg_get_partition_constraintdef(p::oid), 'true')), ' or ')
from unnest(%s::text[]) p
"""


@dataclass(frozen=True)
class Partitions:
    """The partitions of a table that were added or removed since its last copy.

    Attributes:
        new: the ids of those that were added, or detached and attached again.
        are_unused: whether none was removed, and nothing was ever written to the new ones.
    """

    new: frozenset[str]
    are_unused: bool

    @staticmethod
    def between(
        was: Mapping[str, Any], now: Mapping[str, Any], unused: Set[str]
    ) -> "Partitions | None":
        """Compares two shapes of a table. None if all partitions stayed, or others were changed."""
        before, after = was["attached"], now["attached"]
        if before == after:
            return None
        changed = {oid for oid in before.keys() | after if before.get(oid) != after.get(oid)}

        def kept(facts: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
            files, triggers, placed = facts["files"], facts["triggers"], facts["placed"]
            return (
                {oid: file for oid, file in files.items() if oid not in changed},
                {x: made for x, made in triggers.items() if placed.get(x, x) not in changed},
            )

        if kept(was) != kept(now):
            return None
        # One that is being detached has no rows, but a transaction may still write to it.
        new = frozenset(changed & now["files"].keys())
        return Partitions(new, changed <= unused - before.keys())

    @property
    def told(self) -> str:
        """What happened, in words."""
        return "new, empty partitions are captured" if self.are_unused else ATTACHED

    def may_have(self, session: Session, table: str, events: Sequence[Slice]) -> bool:
        """Returns whether rows that some events wrote belong to the new partitions.

        A TRUNCATE in the transaction that created one replaced no file, and sent no event.
        """
        if not events:
            return False
        bounds = session.run(Call(_BOUNDS, ([*self.new],), lambda rows: rows[0][0]))
        query = " union all ".join(
            f"(select from (select row.* from (select * from {part.rows}) event cross join lateral "
            f"json_populate_record(null::{table}, ev_data::json) row) written where {bounds})"
            for part in where(events, _WRITTEN)
        )
        found = Call(f"select exists ({query})".replace("%", "%%"), (), lambda rows: rows[0][0])
        try:
            return bool(session.run(found))
        except DatabaseError as error:  # This session may not read a value, such as money.
            if passes(error):
                raise
            return True
