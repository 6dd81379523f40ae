"""The calls with which many connections publish events in one transaction.

Each connection COPYs into the staging's table in a transaction of its own and reports that one;
only what the transactions named to `publish` wrote becomes events.
"""

from collections.abc import Sequence

from .call import Call

# What a writer may fill, in the order of the columns.
COLUMNS = ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")


def open_staging(queue: str) -> Call[int]:
    """Makes a place to write to; answers with its id."""
    return Call("select pgque.open_staging(%s)", (queue,), lambda rows: int(rows[0][0]))


def table(staging_id: int) -> Call[str]:
    """Answers with the table to COPY into, quoted where needed."""
    return Call("select pgque.staging_table(%s)", (staging_id,), lambda rows: str(rows[0][0]))


def publish(staging_id: int, txids: Sequence[str], events: int) -> Call[int]:
    """Publishes what these transactions wrote; again, it answers the same and publishes nothing.

    Args:
        staging_id: the place.
        txids: the transactions, as `pg_current_xact_id()` wrote them.
        events: how many events they wrote together.
    """
    return Call(
        "select pgque.publish_staging(%s, %s::xid8[], %s)",
        (staging_id, list(txids), events),
        lambda rows: int(rows[0][0]),
    )


def abort(staging_id: int) -> Call[None]:
    """Gives a staging up; one that was published stays so."""
    return Call("select pgque.abort_staging(%s)", (staging_id,), lambda rows: None)
