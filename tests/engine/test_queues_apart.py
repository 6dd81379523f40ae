"""A queue retries and gives up its own events only; what it shows is in test_reading_matrix.py."""

from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    drain,
    finish,
    make_queue,
    next_batch,
    payloads,
    queue_id,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.slots import subscribe


@pytest.fixture(params=[0, 1_000], ids=["few ids", "many ids"])
def foreign(request: pytest.FixtureRequest, db: Connection) -> list[int]:
    """Events of the queue busy, between two ticks of the quiet queue q; returns their ids.

    A rolled-back send_batch uses up ids of q, so that its batch counts as a large one.
    """
    make_queue(db, "busy")
    make_queue(db, "q", consumers=("c",))
    value(db, "select pgque.register_subconsumer('q', 'shared', 'w')")
    subscribe(db, 0, 1, "parted")
    if request.param:
        with db.transaction(force_rollback=True):
            value(db, "select pgque.send_batch('q', 't', %s::text[])", ["x"] * request.param)
    ids = send(db, "a", "b", "c", queue="busy")
    rows(db, "select pgque.force_next_tick(queue_name) from pgque.queue")
    value(db, "select pgque.ticker()")
    return ids


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c')",
        "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w')",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_max_count => 10)",
        "select batch_id from pgque.claim_batch('q', 'c', 'w', i_min_count => 1)",
    ],
)
def test_a_batch_ends_at_a_tick_of_its_own_queue(q: Connection, call: str) -> None:
    make_queue(q, "busy")
    for text in ("a", "b", "c"):
        send(q, text, queue="busy")
        tick(q, "busy")
    assert value(q, call) is None
    send(q, "mine")
    tick(q)
    assert payloads(q, value(q, call)) == ["mine"]


def test_events_of_another_queue_are_not_settled(db: Connection, foreign: list[int]) -> None:
    batch = next_batch(db)
    given = {"batch": batch, "ids": foreign, "id": foreign[0]}
    for settle in (
        "nack_batch(%(batch)s, %(ids)s, '0')",
        "nack_batch(%(batch)s, %(ids)s, '0', array['bad'])",
        "dead_letter_batch(%(batch)s, %(ids)s, 'bad')",
        "dead_letter_batch(%(batch)s, %(ids)s, array['bad'])",
        "event_retry(%(batch)s, %(id)s, 0)",
        "event_retry(%(batch)s, %(id)s, now())",
        "nack(%(batch)s, row(%(id)s, %(batch)s, 't', 'a', null, now(),"
        " null, null, null, null)::pgque.message)",
    ):
        with refused("PQ009", f"event {foreign[0]} is not in batch {batch}"):
            db.execute(f"select pgque.{settle}".encode(), given)
    assert value(db, "select pgque.batch_retry(%s, 0)", batch) == 0
    value(db, "select pgque.next_batch('q', 'shared', 'w')")
    value(db, "select pgque.unregister_subconsumer('q', 'shared', 'w', 1)")
    assert rows(db, "select * from pgque.retry_queue") == []
    assert rows(db, "select * from pgque.dead_letter") == []
    finish(db, batch)
    assert drain(db, "busy") == ["a", "b", "c"]


def test_a_batch_that_is_given_up_takes_none_of_them(db: Connection, foreign: list[int]) -> None:
    sql = "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me', '1 hour')"
    ((batch, epoch),) = rows(db, sql)
    assert value(db, "select pgque.give_up_batch(%s, 'bad', 'me', %s)", batch, epoch) == 0
    assert rows(db, "select * from pgque.dlq_inspect('q')") == []


def test_a_slot_takes_no_event_of_another_queue_back(db: Connection, foreign: list[int]) -> None:
    value(db, "select pgque.insert_event('q', 't', 'mine', 'key', null, null, null)")
    tick(db)
    value(db, "select pgque.claim_slot('q', 'parted', 0, 'w', '1 minute')")
    ((_, batch, *message),) = rows(
        db, "select * from pgque.receive_partitioned('q', 'parted', 0, 1, 'w')"
    )
    values: list[Any] = [foreign[-1], batch, *message]
    sql = "select pgque.nack_partitioned('q', 'parted', 0, 1, 'w', row({})::pgque.message)"
    with refused("PQ009", str(foreign[-1])):
        value(db, sql.format(", ".join(["%s"] * len(values))), *values)
    assert rows(db, "select * from pgque.retry_queue") == []


def test_no_role_can_read_a_table_with_the_events_of_several_queues(q: Connection) -> None:
    for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
        for table in ("event", f"event_group_{queue_id(q) // 64}"):
            right = "select has_table_privilege(%s, %s, 'select')"
            assert value(q, right, role, f"pgque.{table}") is False
