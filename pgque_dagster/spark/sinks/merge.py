"""The SQL that takes rows from a stage into a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

Mode = Literal["append", "upsert", "add"]


@dataclass(frozen=True)
class Merge:
    """How rows get into a table.

    Attributes:
        target: the table.
        mode: `append` inserts; `upsert` replaces the values of rows with the same key; `add` adds
            to them.
        key: the columns of a unique index; empty for append.
        columns: those that the rows have.
    """

    target: sql.Identifier
    mode: Mode
    key: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def rights(self) -> str:
        """What the role needs on the target, as GRANT names it."""
        return "insert" if self.mode == "append" else "select, insert, update"

    @property
    def values(self) -> tuple[str, ...]:
        """The columns beside the key."""
        return tuple(column for column in self.columns if column not in self.key)

    def statement(self, stage: sql.Identifier) -> sql.Composed:
        """The merge; takes the transactions whose rows count, as text[].

        Rows are taken in the order of the key, so that two merges at once cannot block each other
        crosswise.
        """
        adds = self.mode == "add"
        parts = [
            sql.SQL(
                "insert into {} as t ({}) select {} from {} s where s.st_txid = any(%s::xid8[])"
            ).format(
                self.target,
                _names((*self.key, *self.values)),
                sql.SQL(", ").join(
                    [
                        *(sql.Identifier("s", name) for name in self.key),
                        *(
                            sql.SQL("sum({})").format(sql.Identifier("s", name))
                            if adds
                            else sql.Identifier("s", name)
                            for name in self.values
                        ),
                    ]
                ),
                stage,
            )
        ]
        keys = sql.SQL(", ").join(sql.Identifier("s", name) for name in self.key)
        if adds:
            parts.append(sql.SQL("group by {}").format(keys))
        if self.mode != "append":
            parts.append(sql.SQL("order by {}").format(keys))
            parts.append(sql.SQL("on conflict ({}) do {}").format(_names(self.key), self._action()))
        return sql.SQL(" ").join(parts)

    def _action(self) -> sql.Composable:
        if not self.values:
            return sql.SQL("nothing")
        form = (
            "{c} = coalesce(t.{c} + excluded.{c}, t.{c}, excluded.{c})"
            if self.mode == "add"
            else "{c} = excluded.{c}"
        )
        return sql.SQL("update set {}").format(
            sql.SQL(", ").join(sql.SQL(form).format(c=sql.Identifier(name)) for name in self.values)
        )


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
