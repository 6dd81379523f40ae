"""Thousands of transactions in progress at a tick."""

import json
from typing import Any

from tests.support.queues.sql import Connection


def batch_with_list(db: Connection, count: int) -> Any:
    """A batch of so many transactions, all of them in progress at the tick before."""
    db.execute(
        f"do $$ begin for i in 1..{count} loop"
        " perform pgque.send('q', i::text); commit; end loop; end $$".encode()
    )
    event_table = f"pgque.event_{db.queue_id()}"
    db.execute(
        f"""
        with seen as (select array_agg(ev_txid order by ev_txid) as ids from {event_table})
        update pgque.tick_log set tick_snapshot = format('%s:%s:%s', ids[1],
            ids[cardinality(ids)]::text::bigint + 1, array_to_string(ids, ','))::pg_snapshot
        from seen where tick_queue = {db.queue_id()}
        """.encode()
    )
    return db.open_batch()


def plan_nodes(plan: dict[str, Any]) -> int:
    return 1 + sum(plan_nodes(child) for child in plan.get("Plans", []))


def measure(db: Connection, batch: int) -> tuple[int, int, int]:
    """Length of a batch's SQL, nodes of its plan, and the blocks that reading it touches."""
    sql = db.value("select pgque.batch_event_sql(%s)", batch)
    db.execute("set enable_seqscan = off")
    report = db.value(f"explain (analyze, buffers, format json) {sql}")
    (found,) = report if isinstance(report, list) else json.loads(report)
    plan = found["Plan"]
    return len(sql), plan_nodes(plan), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_the_cost_of_a_batch_is_linear_in_the_transactions_in_progress(q: Connection) -> None:
    length, nodes, blocks = measure(q, batch_with_list(q, 500))
    q.value("select pgque.drop_queue('q', true)")
    q.make_queue()
    batch = batch_with_list(q, 2000)
    assert q.payloads(batch) == [str(number) for number in range(1, 2001)]
    longer, more_nodes, more_blocks = measure(q, batch)
    assert more_nodes == nodes
    assert longer <= 4.2 * length
    assert more_blocks <= 5 * blocks
