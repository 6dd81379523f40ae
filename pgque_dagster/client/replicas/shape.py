"""What has happened to a table since its last copy that its triggers do not report, in words.

The shape of a table is a text of facts (`pgque.table_facts`), stored with its last copy. Events
name columns. If nothing wrote a column's definition, its name meant the same all the time.
Otherwise, the names in each event must be those that the table had. They are in the order of the
columns' numbers, which only grow and are never used again: so the same names are the same columns.
Once the tick that ends a batch sees the transactions that wrote definitions, the new shape is
stored: they waited for writers, and later ones for them, so no later event has other names.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from ..models import Slice
from ..operation import Call
from ..plans import where
from ..session import Session
from .source import SourceTable

# What is said if one of the facts differs.
_PARTS = {
    "key": "it has another key, or a new one",
    "triggers": "its triggers were dropped, created, disabled or enabled",
    "spec": "other columns are left out, masked or text, or arrays are lists",
}
# Where one of these types is changed to another and back without a rewrite, values that events have
# of the other type are the same, or refused.
_PLAIN = (
    *("smallint", "integer", "bigint", "boolean", "real", "double precision", "numeric", "uuid"),
    *("text", "character varying", "character", "bytea", "date", "json", "jsonb", "interval"),
    *("timestamp without time zone", "timestamp with time zone"),
)
_ROWS = sql.SQL("ev_type in ('insert', 'update', 'delete')")
_NAMES = "select distinct array(select json_object_keys(ev_data::json)) from "


@dataclass(frozen=True)
class Altered:
    """How a table differs from what it was at its last copy.

    Attributes:
        why: what only a copy can follow, in words.
        added: the columns that were added, each with what older rows have; None for null.
        dropped: the columns that were dropped.
        told: both in words.
        is_rewritten: whether it has other files, as after a TRUNCATE.
        is_touched: whether the definition of a column was written, as for NOT NULL, or to rename it
            and back.
        columns: the columns that its events may have, in order.
    """

    why: tuple[str, ...] = ()
    added: Mapping[str, str | None] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    is_rewritten: bool = False
    is_touched: bool = False
    columns: Collection[tuple[str, ...]] = ()

    @staticmethod
    def since(shape: str, source: SourceTable) -> "Altered":
        """Compares a table with its shape at its last copy."""
        if not shape.startswith("{"):  # An earlier version stored a hash.
            return Altered(() if shape == source.old_shape else ("it is not as it was",))
        was, now = json.loads(shape), json.loads(source.shape)
        why = [text for part, text in _PARTS.items() if was[part] != now[part]]
        if was["files"].keys() != now["files"].keys():
            why.append("partitions were created, attached, detached or dropped")
        for name, made in now["types"].items():
            if was["types"].get(name, made) != made:
                why.append(f"type {name} has other labels or attributes")
        before, columns = was["columns"], now["columns"]
        told = tuple(_of_columns(before, columns, source))
        numbers = sorted(columns.keys() - before.keys(), key=int)
        first = {number: source.missing.get(number, (None,)) for number in numbers}
        added = {columns[number]["name"]: first[number][0] for number in numbers}
        dropped = tuple(before[x]["name"] for x in before.keys() - columns.keys())
        # If others came and went, events may have them under any name.
        others = len(now["writers"]) - len(was["writers"]) - len(added)
        is_changed = any(before.get(x, column) != column for x, column in columns.items())
        named = {*source.spec.exclude, *source.spec.mask, *source.spec.unstorable}
        is_one = all(len(each) == 1 for each in first.values())
        if is_changed or (added and (dropped or others)) or added.keys() & named or not is_one:
            why += told
        touched = [
            column
            for number, column in columns.items()
            if before.get(number) == column and was["writers"][number] != now["writers"][number]
        ]
        if touched and dropped and others:
            why += told
        if touched and now["mixed"]:
            why.append("columns were defined again that partitions have in another order")
        as_text = source.spec.mask.keys() | source.spec.unstorable.keys()
        for column in touched:
            name, kind = column["name"], re.sub(r"\(.*?\)", "", column["type"])
            if name not in source.spec.exclude and (kind not in _PLAIN or name in as_text):
                why.append(f"column {name} {kind} was defined again")
        names = [
            tuple(each[number]["name"] for number in sorted(each, key=int))
            for each in (before, columns)
        ]
        if added:  # One after another.
            names = [names[1][:count] for count in range(len(before), len(columns) + 1)]
        is_rewritten = was["files"] != now["files"]
        return Altered(tuple(why), added, dropped, told, is_rewritten, bool(touched), names)

    @property
    def needs(self) -> frozenset[str]:
        """What a target must do with columns to follow without a copy."""
        values = {"nulls" if first is None else "values" for first in self.added.values()}
        return frozenset({*values, *(["drops"] if self.dropped else [])})

    @property
    def reason(self) -> str:
        """Why the table is copied, if it is."""
        files = ("its files were rewritten",) if self.is_rewritten else ()
        told = dict.fromkeys((*self.why, *self.told, *files))
        return f"it was altered: {'; '.join(told or ['columns were renamed, and back'])}"

    def misreads(self, session: Session, events: Sequence[Slice]) -> bool:
        """Returns whether rows in some events may have other columns under the same names."""
        if not (self.is_touched or self.added) or not events:
            return False
        query = " union ".join(f"{_NAMES}{part.rows}" for part in where(events, _ROWS))
        found = session.run(Call(query.replace("%", "%%"), (), list))
        return any(tuple(names) not in self.columns for (names,) in found)


def _of_columns(
    was: Mapping[str, Any], now: Mapping[str, Any], source: SourceTable
) -> Iterator[str]:
    for number in sorted(was.keys() | now.keys(), key=int):
        before, after = was.get(number), now.get(number)
        if before == after:
            continue
        name = (after or before or {})["name"]
        told = f"column {number} {name}"
        if after is None:
            yield f"{told} was dropped"
        elif before is None:
            first = " or ".join(source.missing.get(number, ["null"]))
            is_hidden = name in source.spec.exclude or name in source.spec.mask
            old = "" if is_hidden else f", old rows have {first}"
            yield f"{told} {after['type']} was added{old}"
        elif before["name"] != name:
            yield f"{told} was {before['name']}"
        else:
            yield f"{told} is {after['type']} and was {before['type']}"
