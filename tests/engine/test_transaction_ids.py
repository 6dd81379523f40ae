"""Prepared transactions, and thousands of transactions in progress at a tick."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.queues import Connection

GID = "a prepared transaction of the tests"


@pytest.fixture
def prepared(q: Connection) -> Iterator[Connection]:
    """Has an event in a prepared transaction; its connection may close."""
    with q.another() as producer:
        producer.execute("begin")
        producer.send("prepared")
        producer.execute(f"prepare transaction '{GID}'".encode())
    yield q
    for (gid,) in q.rows("select gid from pg_prepared_xacts where database = current_database()"):
        q.execute(f"rollback prepared '{gid}'".encode())


@pytest.mark.parametrize(("end", "arrives"), [("commit", ["prepared"]), ("rollback", [])])
def test_a_prepared_event_waits_for_its_end(
    prepared: Connection, end: str, arrives: list[str]
) -> None:
    for number in range(4):
        prepared.send(str(number))
        assert prepared.received() == [str(number)]
        prepared.rotate()
        prepared.compact_positions()
    prepared.execute(f"{end} prepared '{GID}'".encode())
    for _ in range(4):
        prepared.rotate()
    assert ("prepared" in prepared.stored_payloads()) is bool(arrives)
    assert prepared.received() == arrives


def test_a_prepared_event_that_commits_later_is_not_in_an_open_batch(prepared: Connection) -> None:
    batch = prepared.open_batch("a")
    prepared.execute(f"commit prepared '{GID}'".encode())
    assert prepared.payloads(batch) == ["a"]


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
