"""Compares the rows of a replica in PostgreSQL with those of the source."""

from psycopg import sql

from ..key_parts import KeyPart
from ..verify import SHOWN, Difference
from .table import COPIED, DELETED, ROWS, TargetTable


class ComparedTable(TargetTable):
    """A replica that can be compared. Its arguments are those of its definition."""

    def compare(
        self, copied: str, part: KeyPart | None = None
    ) -> tuple[int, tuple[Difference, ...]]:
        """Compares the rows of `stage_copy`, of all or of a part, with the table after the events.

        Returns:
            How many keys differ, and some of them.
        """
        self._read_changes(copied)
        if not self._row_key:
            return self._compare_appended()
        keys = sql.SQL(", ").join(
            sql.SQL("coalesce({}, {})").format(sql.Identifier("o", name), sql.Identifier("s", name))
            for name in self._source.key
        )
        found = self._db.execute(
            sql.SQL(
                "with stored as (select {columns} from {table} t"
                "  where {live} and not exists (select from {changed} s where {changes})"
                "  union all select {columns} from {changed} where not {deleted})"
                " select count(*) over (), case when o.__pgque_here is null then 'extra'"
                "  when s.__pgque_here is null then 'missing' else 'different' end,"
                " row_to_json(o.__pgque_row)::text, row_to_json(s.__pgque_row)::text, {keys}"
                " from (select true as __pgque_here, {key}, __pgque_row"
                "  from (select {columns} from {rows}) __pgque_row) o"
                " full join (select true as __pgque_here, {key}, __pgque_row"
                "  from stored __pgque_row where {part}) s on {matches}"
                " where o.__pgque_here is null or s.__pgque_here is null"
                " or o.__pgque_row::text is distinct from s.__pgque_row::text limit {shown}"
            ).format(
                columns=self._columns,
                table=self._table,
                live=self._live(),
                changed=ROWS,
                changes=self._matches("t", "s"),
                deleted=DELETED,
                key=self._key,
                keys=keys,
                rows=COPIED,
                part=part.condition("__pgque_row") if part else sql.SQL("true"),
                matches=self._matches("o", "s"),
                shown=SHOWN,
            )
        ).fetchall()
        examples = tuple(
            Difference(
                kind,
                dict(zip(self._source.key, key, strict=True)),
                (here,) if here else (),
                (there,) if there else (),
            )
            for _, kind, here, there, *key in found
        )
        return found[0][0] if found else 0, examples

    def _compare_appended(self) -> tuple[int, tuple[Difference, ...]]:
        """Counts rows that differ between the staged copy and the table with the staged events."""
        found = self._db.execute(
            sql.SQL(
                "select count(*) over (), case when sum(n) > 0 then 'missing' else 'extra' end, row"
                " from (select row_to_json(__pgque_row.*)::text as row, 1 as n"
                "   from (select {columns} from {copied}) __pgque_row union all"
                "  select row_to_json(__pgque_row.*)::text, -1"
                "   from (select {columns} from {table} union all"
                "    select {columns} from {changed}) __pgque_row) r"
                " group by row having sum(n) <> 0 limit {shown}"
            ).format(
                columns=self._columns,
                copied=COPIED,
                table=self._table,
                changed=ROWS,
                shown=SHOWN,
            )
        ).fetchall()
        examples = tuple(
            Difference(kind, {}, *([(row,), ()] if kind == "missing" else [(), (row,)]))
            for _, kind, row in found
        )
        return found[0][0] if found else 0, examples
