"""Turns the changes in pgoutput's messages into rows for COPY into an event table.

The events are those of `pgque.capture`. Each has the id and the time of the transaction that made
the change. The messages of a transaction arrive together, and transactions in commit order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from json.encoder import encode_basestring as quoted
from struct import Struct

# How the JSON of events contains the text that PostgreSQL prints. All other values are strings.
_JSON: Mapping[str, Callable[[str], str]] = {
    **dict.fromkeys(("int2out", "int4out", "int8out"), str),
    "boolout": lambda text: "true" if text == "t" else "false",
    "timestamp_out": lambda text: quoted(text.replace(" ", "T", 1)),
    "timestamptz_out": lambda text: quoted(text.replace(" ", "T", 1).replace("+00", "+00:00", 1)),
}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN, _COMMIT = Struct(">qqI"), Struct(">Bqq")
_RELATION, _COLUMN, _TRUNCATE = Struct(">I"), Struct(">Ii"), Struct(">IB")
_NULL, _UNCHANGED = ord("n"), ord("u")


@dataclass(frozen=True)
class Column:
    """A column of a relation: its name, and the oid of its type."""

    name: str
    type: int


@dataclass(frozen=True)
class Relation:
    """A table or a partition whose changes are published.

    Attributes:
        outputs: the functions that print their values.
        key: the numbers of the columns in the key.
        is_partition: whether its changes count for another table.
    """

    table: str
    columns: Sequence[str]
    outputs: Sequence[str]
    key: Sequence[int]
    is_partition: bool

    @cached_property
    def parts(self) -> list[tuple[str, Callable[[str], str]]]:
        """The JSON before each value of a row, and how the value is printed."""
        begins = ["{", *[","] * (len(self.columns) - 1)]
        names = [f"{x}{quoted(name)}:" for x, name in zip(begins, self.columns, strict=True)]
        return list(zip(names, [_JSON.get(each, quoted) for each in self.outputs], strict=True))

    @cached_property
    def escaped(self) -> str:
        """The name in events, as COPY reads it."""
        found = _escaped(self.table)
        return found.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


@dataclass
class Lacking:
    """A new row without its unchanged long values, which are not in the WAL.

    Attributes:
        row: its number among the rows for COPY.
        missing: the numbers of the columns whose values are missing.
    """

    row: int
    transaction: int
    relation: Relation
    values: list[str | None]
    missing: tuple[int, ...]


class Changes:
    """Collects the changes of transactions.

    Args:
        find: finds the relation of a relation message, by its oid and columns.
        columns: the columns of relations, by oid. The stream only sends them if they change.
        next_id: a recent transaction id, with its epoch.

    Attributes:
        rows: the collected rows for COPY.
        lacking: the rows that lack values.
        count: how many events were collected.
        end: where the last transaction ends in the WAL.
    """

    def __init__(
        self,
        find: Callable[[int, Sequence[Column]], Relation],
        columns: dict[int, Sequence[Column]],
        next_id: int,
    ) -> None:
        self._find, self._columns, self._next_id = find, columns, next_id
        self._relations: dict[int, Relation] = {}
        self._head, self._transaction = "", 0
        self.rows: list[str] = []
        self.lacking: list[Lacking] = []
        self.size = self.count = self.end = 0
        self._takes = {
            ord("I"): self._insert,
            ord("U"): self._update,
            ord("D"): self._delete,
            ord("T"): self._truncate,
        }

    def take(self, message: bytes) -> None:
        """Collects the change in a message."""
        kind = message[0]
        if take := self._takes.get(kind):
            self.size += len(message)
            take(message)
        elif kind == ord("B"):
            _, moment, number = _BEGIN.unpack_from(message, 1)
            behind = (number - self._next_id + 2**31) % 2**32 - 2**31
            self._transaction = self._next_id + behind
            self._head = f"{_EPOCH + timedelta(microseconds=moment)}\t{self._transaction}\t"
        elif kind == ord("C"):
            self.end = _COMMIT.unpack_from(message, 1)[2]
        elif kind == ord("R"):
            (oid,) = _RELATION.unpack_from(message, 1)
            self._columns[oid] = _columns(message)
            self._relations.pop(oid, None)

    def empty(self) -> None:
        """Discards the collected rows."""
        self.rows, self.lacking, self.size = [], [], 0

    def request_copy(self, lacking: Lacking) -> None:
        """Requests a copy of a table if the missing values of a row are unknown."""
        time, transaction, *_ = self.rows[lacking.row].split("\t")
        table = lacking.relation.escaped
        self.rows.append(f"{time}\t{transaction}\tcopy\t{{}}\t{table}\n")

    def complete(self, lacking: Lacking, values: Mapping[int, str | None]) -> None:
        """Completes a row with the values of the columns that it lacks."""
        for number in lacking.missing:
            lacking.values[number] = values.get(number)
        time, transaction, kind, _, table = self.rows[lacking.row].split("\t")
        data = _escaped(_json(lacking.relation, lacking.values))
        self.rows[lacking.row] = "\t".join((time, transaction, kind, data, table))

    def _add(self, kind: str, relation: Relation, data: str) -> None:
        self.count += 1
        self.rows.append(f"{self._head}{kind}\t{_escaped(data)}\t{relation.escaped}\n")

    def _insert(self, message: bytes) -> None:
        relation = self._relation(message, 1)
        self._add("insert", relation, _json(relation, _row(message, 6)[0]))

    def _update(self, message: bytes) -> None:
        relation, at, old = self._relation(message, 1), 5, None
        if message[at] != ord("N"):
            old, _, at = _row(message, at + 1)
        values, missing, _ = _row(message, at + 1)
        if old is not None:
            # It has the key columns, and with the replica identity FULL all columns.
            for number in missing:
                values[number] = old[number]
            missing = tuple(number for number in missing if values[number] is None)
            is_moved = any(old[number] != values[number] for number in relation.key)
            if is_moved or not relation.key:
                self._add_delete(relation, old)
        if missing:
            self.lacking.append(
                Lacking(len(self.rows), self._transaction, relation, values, missing)
            )
        self._add("update", relation, _json(relation, values))

    def _delete(self, message: bytes) -> None:
        relation = self._relation(message, 1)
        self._add_delete(relation, _row(message, 6)[0])

    def _add_delete(self, relation: Relation, old: list[str | None]) -> None:
        if any(old[number] is None for number in relation.key):
            # The table had another key, or another replica identity.
            self._add("copy", relation, "{}")
        else:
            self._add("delete", relation, _json(relation, old))

    def _truncate(self, message: bytes) -> None:
        count, _ = _TRUNCATE.unpack_from(message, 1)
        for number in range(count):
            relation = self._relation(message, 6 + 4 * number)
            # The WAL does not say which partitions existed.
            self._add("copy" if relation.is_partition else "truncate", relation, "{}")

    def _relation(self, message: bytes, at: int) -> Relation:
        (oid,) = _RELATION.unpack_from(message, at)
        if oid not in self._relations:
            self._relations[oid] = self._find(oid, self._columns[oid])
        return self._relations[oid]


def _columns(message: bytes) -> tuple[Column, ...]:
    at = message.index(b"\0", message.index(b"\0", 5) + 1) + 2
    count, at, found = int.from_bytes(message[at : at + 2]), at + 2, []
    for _ in range(count):
        end = message.index(b"\0", at + 1)
        kind, _ = _COLUMN.unpack_from(message, end + 1)
        found.append(Column(message[at + 1 : end].decode(), kind))
        at = end + 9
    return tuple(found)


def _row(message: bytes, at: int) -> tuple[list[str | None], tuple[int, ...], int]:
    """Returns the values at an offset of a message, which are missing, and where they end."""
    count, at = int.from_bytes(message[at : at + 2]), at + 2
    values: list[str | None] = []
    missing: list[int] = []
    for number in range(count):
        kind = message[at]
        if kind in (_NULL, _UNCHANGED):
            if kind == _UNCHANGED:
                missing.append(number)
            values.append(None)
            at += 1
        else:
            end = at + 5 + int.from_bytes(message[at + 1 : at + 5])
            values.append(message[at + 5 : end].decode())
            at = end
    return values, tuple(missing), at


def _json(relation: Relation, values: list[str | None]) -> str:
    data = [
        f"{name}null" if value is None else name + text(value)
        for (name, text), value in zip(relation.parts, values, strict=True)
    ]
    return "".join((*data, "}"))


def _escaped(text: str) -> str:
    """Returns a text in COPY's text format. JSON has no line breaks or tabs."""
    return text.replace("\\", "\\\\") if "\\" in text else text
