"""Compares a replica in PostgreSQL with its table at one tick.

The replica's rows are read in a transaction that begins before the tick is made, so the replica
ends at an earlier tick. The changes between the two ticks are applied to its rows before these are
compared with the table's rows, which are read in the snapshot of the tick.
"""

from ...last_batch import LastBatch
from ...plans import tick_range_plan
from ...session import Session
from ..key_parts import KeyPart
from ..outcome import stored_ticks
from ..snapshot import Snapshot
from ..spec import TableSpec
from ..standing import NEXT_COPIES, find_standings
from ..verify import ALTERED, REPLICA_GONE, Verification, last_acked_tick
from .location import PostgresReplicas, connected_target, replica_of
from .staging import stage_events, stage_rows
from .table import create_stages


def verify(
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    target: PostgresReplicas,
    part: KeyPart | None = None,
) -> Verification:
    """Compares a replica, or a part, with its table at a new tick.

    The table's rows pass through this process.

    Raises:
        InvalidArgument: if the table does not exist, or the replica is another table.
        TransactionOutdated: if other tickers were faster each time.
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
            replica = replica_of(there, target, source, queue, consumer)
            if replica.mark is None or not replica.fits or last.tick_id is None:
                return unknown(REPLICA_GONE, acked)
            copied = replica.mark.copied
            if standing.copied is None or copied != standing.copied.transactions:
                return unknown(NEXT_COPIES)
            # Batches without events move the consumer but not the target.
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
                rows = stage_rows(session, snapshot, replica, there, replica.stage_copy(), part)
            differences, examples = replica.compare(copied, part)
    if standing.has_changed(session):
        return unknown(ALTERED, tick_id)
    return Verification(source.name, tick_id, None, rows, differences, examples)
