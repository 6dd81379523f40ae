"""The parts in which a large table is compared with its replica, each at its own tick.

A hash of the key decides which part a row is in. So a row is always in the same part on both sides.
With ranges of blocks, a row that moves from one to another could be in none.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from ..session import Session
from .parts import Extent
from .source import SourceTable
from .spec import TableSpec

# Types whose values have the same text in PostgreSQL and in Spark.
_HASHED = re.compile(
    r"smallint|integer|bigint|numeric\(\d+,0\)|uuid|text|character varying(\(\d+\))?"
)
# Names the schema, because another schema's function may fit the arguments better.
_HASH = (
    "pg_catalog.mod(('x' || pg_catalog.left(pg_catalog.md5(pg_catalog.convert_to("
    "pg_catalog.concat_ws(',', {}), 'UTF8')), 8))::bit(32)::bigint, {}) = {}"
)


@dataclass(frozen=True)
class KeyPart:
    """A part of a table: the rows whose keys have certain hashes.

    Attributes:
        number: its number, from 1.
        of: how many parts the table has.
        columns: the columns of the key that are hashed.
        since: the last tick before the latest comparison of all parts; None without one.
    """

    number: int
    of: int
    columns: tuple[str, ...]
    since: int | None

    def __str__(self) -> str:
        return f"part {self.number} of {self.of}"

    def rows_of(self, table: str) -> str:
        """Returns a FROM clause, with a WHERE clause, for the rows of a table in the part."""
        return f"{table} pgque_table where {self.condition('pgque_table').as_string(None)}"

    def condition(self, rows: str) -> sql.Composed:
        """Returns the condition of SQL that a row is in the part, for rows with an alias."""
        names = sql.SQL(", ").join(sql.Identifier(rows, name) for name in self.columns)
        return sql.SQL(_HASH).format(names, self.of, self.number - 1)


def share_problem(value: Any) -> str | None:
    """Returns what is wrong with the share of a table to compare at a time, or None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.01 <= value <= 1:
        return None
    return f"{value!r} is not a share of a table: write a number from 0.01 to 1, such as 0.1"


def due_parts(
    session: Session, table: TableSpec, share: float, compared: Sequence[Any], *, whole: bool
) -> Sequence[KeyPart | None]:
    """Returns the parts of a table to compare now, all or one, starting with the oldest ticks.

    A comparison of all parts that did not end, because its run was killed, continues.

    Returns:
        The parts. It is None for the table, if that is small or no column of its key can be hashed.
    """
    of = math.ceil(1 / share)
    if of == 1:
        return [None]
    source = SourceTable.find(session, table)
    kinds = {each.name: each.data_type for each in source.columns}
    columns = tuple(name for name in source.key if _HASHED.fullmatch(kinds[name]))
    if not columns or not Extent.of(session, source).is_large:
        return [None]
    ticks = dict.fromkeys(range(1, of + 1), 0)
    ticks |= {each["number"]: each["tick"] for each in compared if each["of"] == of}
    since = max((x["since"] for x in compared if x["since"] is not None), default=None)
    due = sorted(ticks, key=lambda number: ticks[number])
    if not whole:
        del due[1:]
    elif left := [number for number in due if since is not None and ticks[number] <= since]:
        due = left
    else:
        since = max(ticks.values())
    return [KeyPart(number, of, columns, since) for number in due]
