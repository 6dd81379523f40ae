"""Compares a replica in PostgreSQL with its table at one tick.

The rows of the replica are read in a transaction that begins before the tick is made. So the
replica ends at an earlier tick, and the changes between the two are applied to its rows before they
are compared with the table's, which are read in the snapshot of the tick.
"""

from ..last_batch import LastBatch
from ..plans import tick_range_plan
from ..session import Session
from ..table_spec import TableSpec
from .postgres import PostgresReplicas, connected_target, replica_of
from .snapshot import Snapshot
from .staging import stage_events, stage_rows
from .standing import find_standings, stored_ticks
from .target_table import create_stages
from .verification import ALTERED, NEXT_COPIES, REPLICA_GONE, Verification, last_acked_tick


def verify(
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    target: PostgresReplicas,
) -> Verification:
    """Compares a replica with its table at a new tick. The rows of the table pass through here.

    Args:
        session: of the table's database.
        queue: the queue of the table's changes.
        consumer: the consumer that replicates it.
        table: the table's name, or what of it is replicated.
        target: where the replica is.

    Raises:
        InvalidArgument: if the table is not there, or the replica is somebody else's table.
        TransactionOutdated: if no tick could be made beside others.
    """
    standing = find_standings(session, queue, consumer).of(table)
    source = standing.source

    def unknown(why: str, tick_id: int | None = None) -> Verification:
        return Verification(source.name, tick_id, None, why_not=why)

    if why_not := standing.why_unknown or standing.apart:
        return unknown(why_not)
    acked = last_acked_tick(session, queue, consumer)
    stored = stored_ticks(session, queue, consumer)
    with connected_target(session, target) as there:
        ledger = LastBatch(there, queue, consumer)
        with there.transaction(force_rollback=True):
            there.execute("set transaction isolation level repeatable read")
            last = ledger.read()
            replica = replica_of(there, target, source, f"{queue}/{consumer}")
            if replica.mark is None or not replica.fits or last.tick_id is None:
                return unknown(REPLICA_GONE, acked)
            copied = replica.mark.copied
            if standing.copied is None or copied != standing.copied.transactions:
                return unknown(NEXT_COPIES)
            # Batches without events move the consumer and not the target.
            is_behind = stored is None or last.tick_id < stored[0] or stored[1] < acked
            if last.tick_id < acked and is_behind:
                return unknown(f"the replica lost its last batches, and {NEXT_COPIES}")
            with Snapshot.of_tick(session.url, queue) as (tick_id, snapshot):
                create_stages(there)
                from_tick = max(acked, last.tick_id)
                plan = session.run(tick_range_plan(queue, from_tick, tick_id, 1))
                stage_events(session, there, plan.slices, [source], consumer)
                if why := standing.why_copied(replica.later_kinds(copied)):
                    return unknown(why, tick_id)
                stage_rows(session, snapshot, source, there)
            rows, differences, examples = replica.compare(copied)
    if standing.has_changed(session):
        return unknown(ALTERED, tick_id)
    return Verification(source.name, tick_id, None, rows, differences, examples)
