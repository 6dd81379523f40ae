"""Finds what has happened to a table since its last copy that its triggers do not report.

The shape of a table is a text of facts (`pgque.table_facts`), stored with its last copy. Once the
tick that ends a batch sees the transactions that wrote definitions of columns, the new shape is
stored. Those transactions waited for writers, and later writers waited for them, so no later event
has other names. Until then, the stored shape only records, under `has`, which columns the replica
already has.

Events name columns in the order of the columns' numbers, which only grow and are never reused. If a
column's definition was not written, it always had its name; otherwise, it may have had any name. So
the names in an event identify its columns if only one assignment of names to columns is possible.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from psycopg import sql

from ..models import Slice
from ..operation import Call
from ..plans import where
from ..session import Session
from .partitions import ATTACHED, Partitions
from .source import Readings, SourceTable

# The text for each fact that differs.
_PARTS = {
    "key": "it has another key, or a new one",
    "triggers": "its triggers were dropped, created, disabled or enabled",
    "spec": "other columns are left out, masked or text, or arrays are lists",
}
REWRITTEN = "its files were rewritten"
_TEXTS = {"text", "character varying"}
# Where one of these types is changed to another and back without a rewrite, values that events have
# of the other type are the same, or refused.
_PLAIN = (
    *("smallint", "integer", "bigint", "boolean", "real", "double precision", "numeric", "uuid"),
    *(*_TEXTS, "character", "bytea", "date", "json", "jsonb", "interval"),
    *("timestamp without time zone", "timestamp with time zone"),
)
_ROWS = sql.SQL("ev_type in ('insert', 'update', 'delete')")
_NAMES = "select distinct array(select json_object_keys(ev_data::json)) from "


class Column(NamedTuple):
    """A column that events may have.

    Attributes:
        name: its name in all events that have it; None if it may have had any.
        now: its name now; None if it was dropped.
        may_lack: whether events may lack it.
        first: the value in rows that lack it, as JSON; None for null.
    """

    name: str | None
    now: str | None
    may_lack: bool
    first: str | None


@dataclass(frozen=True)
class Altered:
    """How a table has changed since its last copy.

    Attributes:
        why: the changes that require a copy, in words.
        added: the columns that the replica lacks, each with the value in its rows, as the text
            in events; None for null.
        dropped: the columns that only the replica has.
        renamed: the columns that the replica has under other names, with these names.
        retyped: the columns whose type differs, as PostgreSQL prints it.
        told: all of these in words.
        doubts: why existing values may print differently, in words.
        is_rewritten: whether it has other files, as after a TRUNCATE.
        columns: the columns that its events may have, in order; empty if names identify them.
        partitions: those that were added or removed, if the others are unchanged.
    """

    why: tuple[str, ...] = ()
    added: Mapping[str, str | None] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    retyped: Collection[str] = ()
    told: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    is_rewritten: bool = False
    columns: tuple[Column, ...] = ()
    partitions: Partitions | None = None

    @staticmethod
    def since(shape: str, source: SourceTable) -> "Altered":
        """Compares a table with its shape at its last copy."""
        if not shape.startswith("{"):  # An earlier version stored a hash.
            return Altered(() if shape == source.old_shape else ("it is not as it was",))
        was, now = json.loads(shape), json.loads(source.shape)
        if was.keys() - {"has"} != now.keys():
            return Altered(("it was copied by an earlier version",))
        partitions = Partitions.between(was, now, source.unused)
        if partitions is not None:
            was |= {part: now[part] for part in ("attached", "files", "placed", "triggers")}
        has, columns = was.get("has", was["columns"]), now["columns"]
        both = [(has[x], columns[x]) for x in _sorted(columns) if x in has]
        return Altered(
            (*_of_table(was, now), *_of_columns(was, now, source)),
            {
                columns[number]["name"]: _text(_first(number, source))
                for number in _sorted(columns)
                if number not in has
            },
            tuple(has[number]["name"] for number in _sorted(has) if number not in columns),
            {new["name"]: old["name"] for old, new in both if old["name"] != new["name"]},
            tuple(
                new["name"]
                for old, new in both
                if old["type"] != new["type"] and new["name"] not in source.spec.exclude
            ),
            tuple(
                text
                for number in _sorted(has.keys() | columns.keys())
                for text in _told(number, has.get(number), columns.get(number), source)
            )
            + ((partitions.told,) if partitions else ()),
            tuple(_of_types(was, now)),
            was["files"] != now["files"],
            tuple(_ever(was, now, source)),
            partitions,
        )

    @property
    def needs(self) -> frozenset[str]:
        """What a target must do with columns to follow without a copy."""
        kinds = {"drops": self.dropped, "renames": self.renamed, "types": self.retyped}
        values = {"nulls" if first is None else "values" for first in self.added.values()}
        return frozenset({*values, *(kind for kind, found in kinds.items() if found)})

    @property
    def keeps_rows(self) -> bool:
        """Whether rows that were read before are still correct, with null in added columns."""
        # If the name was another column's, that column's values would be read.
        is_new = not self.added or all(each.now is not None for each in self.columns)
        is_odd = self.why or self.doubts or self.is_rewritten
        is_kept = not is_odd and self.needs <= {"nulls", "drops"}
        return is_new and is_kept and (self.partitions is None or self.partitions.are_unused)

    @property
    def reason(self) -> str:
        """Why the table is copied, if it is."""
        files = (REWRITTEN,) if self.is_rewritten else ()
        told = dict.fromkeys((*self.why, *self.told, *self.doubts, *files))
        return f"it was altered: {'; '.join(told or ['columns were defined again'])}"

    def has_all_rows(self, session: Session, table: str, events: Sequence[Slice]) -> bool:
        """Returns whether some events have all rows of new partitions, and none was removed."""
        if self.partitions is None:
            return True
        is_plain = self.partitions.are_unused and not (self.columns or self.needs)
        return is_plain and not self.partitions.may_have(session, table, events)

    def readings(self, session: Session, events: Sequence[Slice]) -> Readings | None:
        """Returns how rows in some events are read, by the names of their columns.

        Rows with the current names and columns need none. None if names do not identify columns.
        """
        if not self.columns or not events:
            return {}
        query = " union ".join(f"{_NAMES}{part.rows}" for part in where(events, _ROWS))
        found = session.run(Call(query.replace("%", "%%"), (), list))
        readings = {}
        kept = [each for each in self.columns if each.now is not None]
        for names in {tuple(names) for (names,) in found}:
            if (places := places_in(names, self.columns)) is None:
                return None
            if names != tuple(each.now for each in kept) or places != tuple(range(len(names))):
                readings[names] = tuple(
                    (str(each.now), place, each.first)
                    for each, place in zip(kept, places, strict=True)
                )
        return readings


def places_in(names: Sequence[str], columns: Sequence[Column]) -> tuple[int | None, ...] | None:
    """Returns the place of each column that was not dropped among the names of an event.

    It is None for a column that the event lacks. Returns None unless there is exactly one way to
    assign the names to the columns.
    """
    # By how many names are given. Of several ways, two are enough.
    ways: dict[int, set[tuple[int | None, ...]]] = {0: {()}}
    for each in columns:
        after: dict[int, set[tuple[int | None, ...]]] = defaultdict(set)
        for given, found in ways.items():
            if given < len(names) and each.name in (None, names[given]):
                after[given + 1] |= {(*way, given) if each.now else way for way in found}
            # An event that lacks a column that was not dropped is older than the later columns.
            if each.may_lack and (given == len(names) or not each.now):
                after[given] |= {(*way, None) if each.now else way for way in found}
        ways = {given: set(islice(found, 2)) for given, found in after.items()}
    found = ways.get(len(names), set())
    return found.pop() if len(found) == 1 else None


def _ever(was: Mapping[str, Any], now: Mapping[str, Any], source: SourceTable) -> Iterator[Column]:
    """Yields the columns that events may have; none if names identify them."""
    before, columns = was["columns"], now["columns"]
    same = {number for number in columns if number in before and not _is_touched(number, was, now)}
    if same == columns.keys():
        return
    for number in _sorted(now["writers"]):
        old, new = before.get(number), columns.get(number)
        if old is None and new is None and number in was["writers"]:
            continue
        # Partitions that have the columns in another order only identify them by name.
        is_known = number in same or (new is not None and now["mixed"])
        name = new["name"] if new is not None else None
        may_lack = old is None or new is None
        yield Column(name if is_known else None, name, may_lack, _first(number, source))


def _of_table(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields the changes, other than of columns, that require a copy."""
    for part, text in _PARTS.items():
        if was[part] != now[part]:
            yield text
    if was["files"].keys() != now["files"].keys() or was["attached"] != now["attached"]:
        yield ATTACHED


def _of_types(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields how enums and composite types were altered, unless all values print the same."""
    labels, made = now["labels"], now["composites"]
    for number, label in was["labels"].items():
        if labels.get(number, label) != label:
            yield f"label {label} of an enum is {labels[number]} now"
    if any(made.get(number, parts) != parts for number, parts in was["composites"].items()):
        yield "a composite type has other attributes"


def _of_columns(
    was: Mapping[str, Any], now: Mapping[str, Any], source: SourceTable
) -> Iterator[str]:
    """Yields the changes of columns that require a copy."""
    before, columns, spec = was["columns"], now["columns"], source.spec
    as_text = spec.mask.keys() | spec.unstorable.keys()
    touched = [x for x in _sorted(columns) if x in before and _is_touched(x, was, now)]
    added = [number for number in _sorted(columns) if number not in before]
    # Other partitions were added or removed.
    others = len(now["writers"]) - len(was["writers"]) - len(added)
    if now["mixed"] and (touched or (added and (others or before.keys() - columns.keys()))):
        yield "columns were defined again that partitions have in another order"
    for number in touched:
        old, new = before[number], columns[number]
        names = {old["name"], new["name"]}
        if names <= set(spec.exclude):
            continue
        if not _print_alike(old, new) or names & (as_text | set(spec.exclude)):
            again = f"column {new['name']} {_kind(new['type'])} was defined again"
            yield from list(_told(number, old, new, source)) or [again]
    for number in added:
        new, firsts = columns[number], source.missing.get(number, ())
        old = was.get("has", {}).get(number)
        is_odd = number in was["writers"] or len(firsts) > 1
        if old and old["type"] != new["type"]:
            is_odd |= not _print_alike(old, new)
        if is_odd or new["name"] in as_text or new["name"] in spec.exclude:
            yield from _told(number, None, new, source)


def _told(
    number: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None, source: SourceTable
) -> Iterator[str]:
    told = f"column {number} {(new or old or {})['name']}"
    if new is None:
        yield f"{told} was dropped"
    elif old is None:
        name, firsts = new["name"], source.missing.get(number, ["null"])
        is_hidden = name in source.spec.exclude or name in source.spec.mask
        has = "" if is_hidden else f", old rows have {' or '.join(str(_text(x)) for x in firsts)}"
        yield f"{told} {new['type']} was added{has}"
    else:
        if old["name"] != new["name"]:
            yield f"{told} was {old['name']}"
        if old["type"] != new["type"]:
            yield f"{told} is {new['type']} and was {old['type']}"
        if old.get("comment") != new.get("comment"):
            yield f"{told} has another comment"


def _is_touched(number: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether the definition of a column was written, as for NOT NULL."""
    return bool(was["writers"][number] != now["writers"][number])


def _print_alike(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Returns whether values of two types print alike if changing one to the other keeps files."""
    kinds = {_kind(old["type"]), _kind(new["type"])}
    return kinds <= set(_PLAIN) and (len(kinds) == 1 or kinds <= _TEXTS)


def _first(number: str, source: SourceTable) -> str | None:
    return next(iter(source.missing.get(number, ())), None)


def _text(value: str | None) -> str | None:
    """Returns the text of a value in JSON."""
    found = None if value is None else json.loads(value)
    return found if isinstance(found, str) else value


def _kind(name: str) -> str:
    """Returns a type without its length or precision."""
    return re.sub(r"\(.*?\)", "", name)


def _sorted(numbers: Collection[str]) -> list[str]:
    return sorted(numbers, key=int)
