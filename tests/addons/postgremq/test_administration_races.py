"""Administrators beside consumers, publishers and rotation: no message gets lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.messages import (
    ack,
    consume,
    drain,
    make_queue,
    nack,
    publish,
    rotate,
    states,
    switch,
)
from tests.support.queues import Connection, refused, rows, value, wait_until_blocked

Another = Callable[[], Connection]

PUT_BACK = (
    "update postgremq.queue_messages set status = 'pending', vt = now(), delivery_attempts = 0"
    " where message_id = %s"
)


@pytest.fixture
def snapshot(another: Another) -> Iterator[Connection]:
    """A transaction that begins before the test's changes."""
    db = another()
    db.execute("begin isolation level repeatable read")
    value(db, "select count(*) from postgremq.queues")
    yield db
    db.execute("rollback")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_message_that_is_put_back_while_a_cleanup_waits(
    db: Connection, another: Another, background: ThreadPoolExecutor, end: str
) -> None:
    make_queue(db)
    publish(db, 1, 2, 3)
    drain(db)
    first, cleaner = another(), another()
    first.execute("begin")
    first.execute(PUT_BACK, [1])
    sql = "select postgremq.cleanup_completed_messages(0)"
    removed = background.submit(value, cleaner, sql)
    wait_until_blocked(db, cleaner)
    db.execute(PUT_BACK, [2])
    first.execute(end)
    assert removed.result(timeout=60) == (1 if end == "commit" else 2)
    assert drain(db) == ([1, 2] if end == "commit" else [2])


def test_cleanup_counts_archived_messages_once(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2)
    drain(db)
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select 1")
    rotate(db)
    publish(db, 3)
    drain(db)
    assert value(db, "select postgremq.cleanup_completed_messages(0)") == 3
    assert states(db) == []
    old.execute("rollback")


@pytest.mark.parametrize("limit", [1, 5])
def test_claim_with_a_snapshot_from_before_a_change_of_the_limit(
    db: Connection, snapshot: Connection, limit: int
) -> None:
    make_queue(db, max_attempts=2)
    publish(db, 1)
    consume(db, vt=0)
    snapshot.execute("commit")
    snapshot.execute("begin isolation level repeatable read")
    value(snapshot, "select count(*) from postgremq.queues")
    db.execute("update postgremq.queues set max_delivery_attempts = %s", [limit])
    with refused("40001"):
        consume(snapshot, vt=0)
    snapshot.execute("rollback")
    snapshot.execute("begin isolation level repeatable read")
    assert len(consume(snapshot)) == (limit > 1)


@pytest.mark.parametrize("answer", ["nack", "release", "set_vt"])
def test_answer_with_a_snapshot_from_before_a_change_of_the_limit(
    db: Connection, another: Another, answer: str
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    (claim,) = consume(db)
    slow = another()
    slow.execute("begin isolation level repeatable read")
    value(slow, "select count(*) from postgremq.queues")
    db.execute("update postgremq.queues set max_delivery_attempts = 5")
    with refused("40001"):
        more = ", 1" if answer == "set_vt" else ""
        function = "set_vt" if answer == "set_vt" else f"{answer}_message"
        sql = f"select postgremq.{function}('q', %s, %s{more})"
        rows(slow, sql, claim.id, claim.token)
    nack(db, claim)
    assert drain(db) == [1]


def test_raw_change_beside_a_change_of_the_limit(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, max_attempts=1)
    make_queue(db, "p")
    (id_,) = publish(db, 7)
    lock, slow = another(), another()
    lock.execute("begin")
    lock.execute(
        "insert into postgremq.dead_letter_queue (queue_name, message_id) values ('p', %s)", [id_]
    )
    sql = "update postgremq.queue_messages set delivery_attempts = 1 where queue_name = 'q'"
    change = background.submit(slow.execute, sql.encode())
    wait_until_blocked(db, slow)
    db.execute("update postgremq.queues set max_delivery_attempts = 5 where name = 'q'")
    lock.execute("rollback")
    change.result(timeout=60)
    assert drain(db) == [7]


def test_change_of_the_limit_gives_up_beside_an_open_consumer(
    db: Connection, another: Another
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    slow = another()
    slow.execute("begin")
    (claim,) = consume(slow)
    with refused("55P03", "open transactions have claimed", "Try again"):
        db.execute("update postgremq.queues set max_delivery_attempts = 5")
    assert value(db, "select max_delivery_attempts from postgremq.queues") == 1
    ack(slow, claim)
    slow.execute("commit")
    db.execute("update postgremq.queues set max_delivery_attempts = 5")
    assert drain(db) == [2]


def test_snapshot_from_between_maintenance_and_its_commit(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2)
    switch(db)
    maintenance, old = another(), another()
    maintenance.execute("begin")
    value(maintenance, "select postgremq.clean_up_queue('q')")
    for _ in range(4):
        value(maintenance, "select postgremq.maint()")
    old.execute("begin isolation level repeatable read")
    assert len(states(old)) == 2
    maintenance.execute("commit")
    for _ in range(4):
        value(db, "select postgremq.maint()")
    assert len(states(old)) == 2
    assert value(db, "select pg_relation_size('postgremq.state_0')") > 0
    old.execute("rollback")
    while value(db, "select postgremq.maint()"):
        pass
    assert value(db, "select pg_relation_size('postgremq.state_0')") == 0


def test_completed_message_that_an_administrator_calls_dead_is_requeued_once(
    db: Connection,
) -> None:
    make_queue(db)
    (id_,) = publish(db, 1)
    drain(db)
    rotate(db)
    db.execute(
        "insert into postgremq.dead_letter_queue (queue_name, message_id) values ('q', %s)", [id_]
    )
    value(db, "select postgremq.requeue_dlq_messages('q')")
    assert states(db) == [(id_, "pending", 0)]
    assert value(db, "select postgremq.cleanup_completed_messages(0)") == 0
    assert drain(db) == [1]


def test_maintenance_in_a_session_that_reads_the_states(db: Connection) -> None:
    make_queue(db)
    publish(db, 1)
    drain(db)
    switch(db)
    for _ in range(2):
        value(db, "select postgremq.maint()")
    db.execute("begin")
    db.execute("declare states cursor for select * from postgremq.queue_messages")
    assert value(db, "select postgremq.maint()") == 0
    assert len(rows(db, "fetch all from states")) == 1
    db.execute("commit")
    assert value(db, "select postgremq.maint()") == 1
