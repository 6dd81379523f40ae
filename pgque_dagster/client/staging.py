"""Publishing from many connections in one transaction.

Each connection COPYs into the staging table in its own transaction and reports that transaction's
id. `publish` receives the ids that count; only the rows of these become events.
"""

from collections.abc import Sequence

from .operation import Call, first, nothing

# The columns that a writer may fill, in order.
COLUMNS = ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")


def open_staging(queue: str) -> Call[int]:
    """Creates a staging table; returns its id."""
    return Call("select pgque.open_staging(%s)", (queue,), first)


def table(staging_id: int) -> Call[str]:
    """Returns the name of the table to COPY into, quoted where needed."""
    return Call("select pgque.staging_table(%s)", (staging_id,), first)


def publish(staging_id: int, txids: Sequence[str], events: int) -> Call[int]:
    """Publishes the rows of these transactions; returns their number. It can be repeated.

    Args:
        staging_id: the staging.
        txids: the transactions, as `pg_current_xact_id()` wrote them.
        events: how many events they wrote in total.
    """
    return Call(
        "select pgque.publish_staging(%s, %s::xid8[], %s)",
        (staging_id, list(txids), events),
        first,
    )


def abort(staging_id: int) -> Call[None]:
    """Drops a staging that is not published."""
    return Call("select pgque.abort_staging(%s)", (staging_id,), nothing)
