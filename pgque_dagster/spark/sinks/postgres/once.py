"""A function for foreachBatch whose effect in PostgreSQL happens once per micro-batch."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

from pyspark.sql import DataFrame

from ....client.connection import connect
from ....client.consumer.target_database import open_throughout
from ....client.errors import InvalidArgument
from ....client.ledger import AlreadyApplied, Ledger
from ....client.rights import Connection
from ...streaming.reader import TickOffset
from ...written import Written

_QUERY_ID = "sql.streaming.queryId"
# Spark runs the jobs of a streaming query under the id of its run.
_RUN_ID = "spark.jobGroup.id"
_ANOTHER_NAME = (
    "Give this effect another name. Keep the name of the first one, which is in the ledger."
)


def once_per_batch(
    url: str,
    name: str,
    apply: Callable[[DataFrame, int, Connection], object],
    *,
    query: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Makes a function for `writeStream.foreachBatch` that applies each micro-batch once.

    What `apply` does on its connection commits together with a row of the table
    `pgque_sink_ledger`. So it happens once, even if a process is killed: if Spark repeats a
    micro-batch after the commit, the function skips it. What `apply` does elsewhere (files, other
    databases) happens at least once.

    Args:
        url: the database. The role needs SELECT and INSERT on the table or, if it is missing,
            CREATE in the first schema of the search_path.
        name: the name of the effect. Two effects of one query need two names; a second effect of
            one name in a micro-batch is refused.
        apply: takes the DataFrame, the micro-batch's number and the connection. The transaction is
            already open: `connection.transaction()` makes a savepoint, and `connection.commit()` is
            refused. Its first statement takes the snapshot and locks, so do Spark's work before it;
            during that, `idle_in_transaction_session_timeout` applies.
        query: identifies the streaming query. By default, a micro-batch of the source `pgque` is
            known by its consumer and ticks, and others by the query's id, which belongs to the
            checkpoint. Spark Connect offers neither, so pass a value there, and another one for
            each new checkpoint, because its micro-batches are numbered from 0 again.

    Returns:
        The function.
    """

    def once(frame: DataFrame, batch_id: int) -> None:
        batch = micro_batch(frame, batch_id, query)
        note = partial(written_of(frame, batch[0]).add, name, hint=_ANOTHER_NAME)
        ledger = Ledger(None, name, note)
        with connect(url) as connection:
            if ledger.has(connection, batch):
                return
            try:
                # It begins here, so that connection.transaction() in apply makes savepoints.
                with connection.transaction():
                    with open_throughout(connection, f"micro-batch {batch[0]} of {name}"):
                        apply(frame, batch_id, connection)
                    ledger.record(connection, batch)
            except AlreadyApplied:
                ledger.has(connection, batch)

    return once


def micro_batch(frame: DataFrame, batch_id: int, query: str | None) -> tuple[str, ...]:
    """Returns the names of a micro-batch in the ledger; `query` is as for `once_per_batch`.

    Raises:
        InvalidArgument: if the DataFrame is not a micro-batch, or the session uses Spark Connect.
    """
    if query:
        return (f"{query}/{batch_id}",)
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        ticks = _ticks(frame, found) if found else ()
    except Exception as error:
        raise InvalidArgument(
            "this session does not offer the streaming query's id and offsets",
            "Pass query=, with another value for each checkpoint.",
        ) from error
    if not found:
        raise InvalidArgument(
            "the DataFrame is not a micro-batch of a streaming query",
            "Use this with writeStream.foreachBatch, or pass query=.",
        )
    return (*ticks, f"{found}/{batch_id}")


def _ticks(frame: DataFrame, query: str) -> tuple[str, ...]:
    """Returns the names of a micro-batch by its ticks; none unless it has one consumer's events."""
    # Spark has no public name for the offsets of a micro-batch.
    running = frame._jdf.sparkSession().sharedState().activeStreamingQueries()  # noqa: SLF001
    (execution,) = (each for each in running.values() if each.id().toString() == query)
    leaves = execution.lastExecution().logical().collectLeaves()
    streams = [leaf for leaf in map(leaves.apply, range(leaves.size())) if leaf.isStreaming()]
    if any(leaf.nodeName() != "StreamingDataSourceV2ScanRelation" for leaf in streams):
        return ()
    ends = {(leaf.startOffset().get().json(), leaf.endOffset().get().json()) for leaf in streams}
    with suppress(TypeError, ValueError):  # Offsets of another source, or several.
        ((first, last),) = ([TickOffset(**json.loads(end)) for end in pair] for pair in ends)
        if first.tick < last.tick and first.fingerprint and last.fingerprint:
            who = f"{first.queue}/{first.consumer}/{first.registration}"
            start = f"{who} from tick {first.tick} {first.fingerprint}"
            return f"{start} to tick {last.tick} {last.fingerprint}", start
    return ()


def written_of(frame: DataFrame, batch: str) -> Written:
    """Returns the record of what this attempt at a micro-batch has written.

    A run of a query attempts a micro-batch only once, because a failure ends the run. Spark Connect
    does not offer the run's id, but starts a process for each run, so the process is the run.
    """
    try:
        run = frame.sparkSession.sparkContext.getLocalProperty(_RUN_ID)
    except Exception:
        run = None
    return _written(run, batch)


@lru_cache(maxsize=1000)
def _written(run: str | None, batch: str) -> Written:
    return Written(f"micro-batch {batch}")
