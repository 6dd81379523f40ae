"""Records how replicas stand in the database of their tables: batches, and comparisons.

A batch is recorded in the transaction of its ack. What a comparison found stays until a later one,
whatever is applied or copied meanwhile.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import LiteralString

from ..batch import Batch
from ..encoding import encode
from ..operation import Call, nothing
from ..ranges import age
from ..replica_status import replica_of_table
from ..session import Session
from ..table_spec import TableSpec
from .standing import Replicated
from .verification import Verification


def record_batch(batch: Batch, done: Sequence[Replicated]) -> None:
    """Has the ack of a batch record what it did to each replica of its consumer."""
    tables = [
        {
            "table_name": each.source.name,
            "location": each.location,
            "is_stored": each.is_stored,
            "is_copied": each.is_copied,
            "row_count": each.rows if each.reason is not None else None,
            "added": each.added,
        }
        for each in done
    ]
    values = (batch.queue, batch.consumer, batch.lease.tick_id, encode(tables))
    query = "select pgque.note_replicas(%s, %s, %s, %s::jsonb)"
    batch.before_ack(lambda connection: connection.execute(query, values))


def compare_and_record(
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    compare: Callable[[], Verification],
    timeout: timedelta,
) -> Verification:
    """Compares a replica with its table, and records what was found, or why nothing was.

    Args:
        session: of the table's database. The comparison needs one of its own.
        queue: the queue of the table's changes.
        consumer: the consumer that replicates it.
        table: the table's name, or what of it is replicated.
        compare: compares them.
        timeout: how long it may take.

    Returns:
        What was found. Nothing, if it takes longer; then it goes on until its process ends.
    """
    name = TableSpec.of(table).source
    found = session.run(replica_of_table(queue, consumer, name))
    copy = found.copied_tick if found else None
    table_name = found.table if found else name

    def record(
        tick_id: int | None, rows: int | None, problem: str | None, why_not: str | None
    ) -> None:
        values = (queue, consumer, table_name, copy, tick_id, rows, problem, why_not)
        query: LiteralString = "select pgque.note_verified(%s, %s, %s, %s, %s, %s, %s, %s)"
        session.run(Call(query, values, nothing))

    try:
        verification = _bounded(compare, name, timeout)
    except Exception as error:
        # The first line of Spark's errors says what they are.
        record(None, None, None, next(iter(str(error).splitlines()), type(error).__name__))
        raise
    tick_id, problem = verification.tick_id, verification.problem
    if verification.why_not is None:
        record(tick_id, verification.rows, problem, None)
    elif problem is None:
        record(None, None, None, verification.why_not)
    else:
        # Nothing was read at a tick of its own, which the last comparison may have made.
        record(max(tick_id or 0, found.verified_tick or 0 if found else 0), None, problem, None)
    return verification


def _bounded(compare: Callable[[], Verification], table: str, timeout: timedelta) -> Verification:
    """Runs a comparison in a thread, because nothing ends each wait of a hanging one."""
    done: Future[Verification] = Future()

    def run() -> None:
        try:
            done.set_result(compare())
        except BaseException as error:
            done.set_exception(error)

    # The pools of Python would wait for it when the process ends.
    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(timeout.total_seconds())
    except TimeoutError:
        if done.done():  # It is the comparison's own.
            raise
        why = (
            f"it took longer than {age(timeout)}; see what it waits for, such as a lock on the "
            "table or a storage that does not answer, or raise verify_timeout"
        )
        return Verification(table, None, None, why_not=why)
