"""A foreachBatch whose effect in Postgres happens once for each micro-batch."""

import threading
from collections.abc import Callable

import psycopg
from psycopg.pq import TransactionStatus
from pyspark.sql import DataFrame

from ...client.connection import connect
from ...client.errors import InvalidArgument
from ..written import Written
from .ledger import NAME as LEDGER
from .ledger import AlreadyApplied, Ledger
from .rights import Connection

_QUERY_ID = "sql.streaming.queryId"
# Spark runs the jobs of a streaming query under the id of its run.
_RUN_ID = "spark.jobGroup.id"
_ANOTHER_NAME = (
    "Give this effect another name. The first one keeps its own, by which it is known as done."
)

# What the last micro-batch of each run has written.
_written: dict[str, tuple[str, Written]] = {}
_lock = threading.Lock()


def once_per_batch(
    url: str,
    name: str,
    apply: Callable[[DataFrame, int, Connection], object],
    *,
    query: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Makes a function for `writeStream.foreachBatch` that applies each micro-batch once.

    What `apply` does on the connection it is given is one transaction, together with a row of the
    table `pgque_sink_ledger` that says so. So, whatever is killed and whenever, it happens once:

    - Killed **before the commit**: nothing happened, and Spark repeats the micro-batch.
    - Killed **after the commit**, before Spark wrote its checkpoint: Spark repeats the micro-batch,
      and it is passed by.

    What `apply` does elsewhere (files, other databases) happens at least once.

    Args:
        url: the database. Where that table is missing, the role needs CREATE in the first schema of
            the search_path; else SELECT and INSERT on it.
        name: of the effect; two of one query need two names, and a second effect of one name in a
            micro-batch is refused.
        apply: takes the DataFrame, the micro-batch's number and the connection, whose transaction
            is open already: a block of `connection.transaction()` is a savepoint, and
            `connection.commit()` is refused. Snapshot and locks are taken with its first statement,
            so the work of Spark belongs before; `idle_in_transaction_session_timeout` counts then.
        query: whose micro-batches these are; left out, the streaming query's own id, which lives as
            long as its checkpoint. Needed with Spark Connect, where the id cannot be had; a new
            checkpoint, whose micro-batches count from 0 again, then needs a new one.

    Returns:
        The function.
    """

    def once(frame: DataFrame, batch_id: int) -> None:
        batch = f"{query or query_id(frame)}/{batch_id}"
        ledger = Ledger(None, name, written_of(frame, batch), _ANOTHER_NAME)
        with connect(url) as connection:
            if ledger.has(connection, batch):
                return
            try:
                # Begun here, so that blocks of connection.transaction() in it are savepoints.
                with connection.transaction():
                    try:
                        apply(frame, batch_id, connection)
                    except psycopg.Rollback as error:  # would end the block without an error
                        raise _ended(name) from error
                    if connection.info.transaction_status == TransactionStatus.IDLE:
                        raise _ended(name)
                    ledger.record(connection, batch)
            except AlreadyApplied:
                ledger.has(connection, batch)

    return once


def _ended(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"the effect {name} itself ended the transaction that it shares with its row in {LEDGER}",
        "Leave commit and rollback to once_per_batch: raise an exception to undo all, or use "
        "connection.transaction(), which is a savepoint here.",
    )


def query_id(frame: DataFrame) -> str:
    """Returns the id of the streaming query whose micro-batch this is.

    Raises:
        InvalidArgument: if it is of none, or of one over Spark Connect.
    """
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:
        raise InvalidArgument(
            "the streaming query's id cannot be had from this session",
            "Pass query=, with another value for each checkpoint.",
        ) from error
    if not found:
        raise InvalidArgument(
            "the DataFrame is no micro-batch of a streaming query",
            "Use this with writeStream.foreachBatch, or pass query=.",
        )
    return str(found)


def written_of(frame: DataFrame, batch: str) -> Written:
    """Returns what this attempt at a micro-batch has written.

    A run of a query attempts a micro-batch once: it ends when that fails. Where the run cannot be
    known, as with Spark Connect, it is the process, of which Connect starts one for each run.

    Args:
        frame: the micro-batch.
        batch: its name; the streaming query's is in it.
    """
    try:
        run = frame.sparkSession.sparkContext.getLocalProperty(_RUN_ID)
    except Exception:
        run = None
    key = f"{run}/{batch.rpartition('/')[0]}"
    with _lock:
        last, written = _written.get(key, ("", None))
        if written is None or last != batch:
            written = Written(f"micro-batch {batch}")
            _written[key] = (batch, written)
        return written
