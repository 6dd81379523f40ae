"""Which events of tables a range of them has. PostgreSQL looks."""

from collections.abc import Sequence

from psycopg import sql

from ..models import Slice
from ..operation import Call
from ..plans import where
from ..session import Session

# An event of a TRUNCATE, among those of rows.
TRUNCATE = "truncate"
UPDATE, DELETE = "update", "delete"
# Stands for the type of an event that is delivered again.
REDELIVERED = "redelivered"


def kinds(session: Session, slices: Sequence[Slice]) -> dict[str, set[str]]:
    """Returns the tables of events and, for each, their types; `REDELIVERED` for a second time.

    Raises:
        StaleReadPlan: if the events are no longer there.
    """
    if not slices:
        return {}
    found: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    columns = f"select ev_extra1, {kind.as_string(None)} from "
    query = " union ".join(f"{columns}{part.rows}" for part in slices).replace("%", "%%")
    for table, each in session.run(Call(query, (), list)):
        found.setdefault(table, set()).add(each)
    return found


def after_truncate(session: Session, slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Returns events without those before the last TRUNCATE, which is among them."""
    found = where(slices, sql.SQL("ev_type = {}").format(TRUNCATE))
    query = " union all ".join(f"select ev_id from {part.rows}" for part in found)
    last = max(session.run(Call(query.replace("%", "%%"), (), list)))[0]
    return where(slices, sql.SQL("ev_id > {}").format(last))
