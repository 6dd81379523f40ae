"""Builds the SQL that merges rows from a stage into a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from .columns import StagedColumn

Mode = Literal["append", "upsert", "add"]


@dataclass(frozen=True)
class Merge:
    """How rows get into a table.

    Statements have no parameters: with them, psycopg would take a % in a name for one.

    Attributes:
        target: the table.
        mode: `append` inserts; `upsert` replaces the values of rows with the same key; `add` adds
            to them.
        key: the columns of a unique index; empty for append.
        columns: the columns of the rows.
    """

    target: sql.Identifier
    mode: Mode
    key: tuple[str, ...]
    columns: tuple[StagedColumn, ...]

    @property
    def rights(self) -> str:
        """The rights that the role needs on the target, as in GRANT."""
        return "insert" if self.mode == "append" else "select, insert, update"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    @property
    def checks(self) -> dict[str, sql.Composed]:
        """For each column that may not hold all values: a condition on the values to refuse.

        Null is refused in the key, unless the column is NOT NULL and refuses it itself.
        """
        found = {}
        for column in self.columns:
            parts = [column.check]
            if column.name in self.key and column.nullable:
                parts.append("{c} is null")
            given = [f"({part})" for part in parts if part]
            if given:
                found[column.name] = sql.SQL(" or ".join(given)).format(
                    c=sql.Identifier("s", column.name),
                    type=sql.SQL(column.type),
                    staged=sql.SQL(column.staged),
                )
        return found

    def unlogged(self, stage: sql.Identifier) -> sql.Composed:
        """Returns the statement that creates a stage."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.staged))
            for column in self.columns
        ]
        return sql.SQL("create unlogged table {} ({})").format(stage, sql.SQL(", ").join(columns))

    def statement(self, stage: sql.Identifier, txids: Sequence[str]) -> sql.Composed:
        """Returns the statement that merges the rows of a stage that transactions wrote.

        It takes rows in the order of the key, so that concurrent merges cannot deadlock.
        """
        values = [
            sql.SQL("{}::{}").format(sql.Identifier("s", column.name), sql.SQL(column.type))
            for column in self.columns
        ]
        parts = [
            sql.SQL("insert into {} as t ({}) select {} from ({}) s").format(
                self.target,
                _names(self.names),
                sql.SQL(", ").join(values),
                self._rows(stage, txids, sums=self.mode == "add"),
            )
        ]
        if self.mode != "append":
            keys = sql.SQL(", ").join(sql.Identifier("s", name) for name in self.key)
            parts.append(sql.SQL("order by {}").format(keys))
            parts.append(sql.SQL("on conflict ({}) do {}").format(_names(self.key), self._action()))
        return sql.SQL(" ").join(parts)

    def misfit(
        self, stage: sql.Identifier, txids: Sequence[str], columns: Sequence[str]
    ) -> sql.Composed:
        """Returns a query for a row with a value that the target would change, as texts.

        All of the columns to check are in the key, or none. For `add`, the other values are sums by
        the key, so check the key first.
        """
        return sql.SQL("select {} from ({}) s where {} limit 1").format(
            sql.SQL(", ").join(
                sql.SQL("{}::text").format(sql.Identifier("s", name)) for name in columns
            ),
            self._rows(stage, txids, sums=self.mode == "add" and not set(columns) <= set(self.key)),
            sql.SQL(" or ").join(self.checks[name] for name in columns),
        )

    def _rows(self, stage: sql.Identifier, txids: Sequence[str], *, sums: bool) -> sql.Composed:
        """Returns a query for the staged rows, or for their sums by the key of the target."""
        key = {
            column.name: sql.SQL("{}::{}").format(sql.Identifier(column.name), sql.SQL(column.type))
            for column in self.columns
            if column.name in self.key
        }
        values: list[sql.Composable] = [
            sql.SQL("{} as {}").format(
                key.get(name) or sql.SQL("sum({})").format(sql.Identifier(name)),
                sql.Identifier(name),
            )
            if sums
            else sql.Identifier(name)
            for name in self.names
        ]
        rows = sql.SQL("select {} from {} where {}").format(
            sql.SQL(", ").join(values), stage, written_by(txids)
        )
        if sums:
            # Uses the expressions, because a name would mean the staged column.
            return rows + sql.SQL(" group by {}").format(sql.SQL(", ").join(key.values()))
        return rows

    def _action(self) -> sql.Composable:
        values = [name for name in self.names if name not in self.key]
        if not values:
            return sql.SQL("nothing")
        form = (
            "{c} = coalesce(t.{c} + excluded.{c}, t.{c}, excluded.{c})"
            if self.mode == "add"
            else "{c} = excluded.{c}"
        )
        return sql.SQL("update set {}").format(
            sql.SQL(", ").join(sql.SQL(form).format(c=sql.Identifier(name)) for name in values)
        )


def written_by(txids: Sequence[str]) -> sql.Composed:
    """Returns the condition on rows of a stage that transactions wrote."""
    # A row has 32 bits of its transaction's id: enough for the day that a stage is in use.
    return sql.SQL("xmin = any({}::xid[])").format([str(int(txid) % 2**32) for txid in txids])


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
