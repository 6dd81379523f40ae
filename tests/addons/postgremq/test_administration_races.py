"""Administrators beside consumers, publishers and rotation: nothing is lost, nothing doubled."""

import pytest

from tests.addons.conftest import begun
from tests.support.addons.messages import (
    ack,
    bury,
    consume,
    drain,
    make_queue,
    nack,
    publish,
    put_back,
    rotate,
    set_limit,
    states,
    statistics,
    switch,
)
from tests.support.queues.sql import Connection, refused

CLEAN_UP = "select postgremq.cleanup_completed_messages(0)"


def test_uninstall_counts_messages_whose_publishers_have_not_committed(q: Connection) -> None:
    publisher = begun(q.another())
    publish(publisher, 1)
    removal = q.blocked(Connection.rows, "select postgremq.uninstall()")
    publisher.execute("commit")
    with refused("PQ020", '"q"'):
        removal.result()
    assert drain(q) == [1]


def test_message_that_is_removed_while_it_is_archived_does_not_come_back(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    drain(db)
    switch(db)
    maintenance = begun(db.another())
    maintenance.value("select postgremq.maint()")
    removal = db.blocked(Connection.value, "select postgremq.move_messages_to_dlq()")
    maintenance.execute("commit")
    assert removal.result() == 1
    assert states(db) == []
    db.value("select postgremq.requeue_dlq_messages('q')")
    db.value(CLEAN_UP)
    assert drain(db) == [1]


@pytest.mark.parametrize("is_acked", [False, True])
def test_limit_is_changed_beside_a_consumer(db: Connection, is_acked: bool) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    claims = consume(db) if is_acked else []
    slow = begun(db.another())
    if is_acked:
        ack(slow, claims[0])
    else:
        consume(slow, vt=0)
    change = db.blocked(set_limit, 5)
    slow.execute("commit")
    change.result()
    assert drain(db) == ([] if is_acked else [1])
    assert statistics(db) == (0, 0, 1, 1)


def test_change_of_the_limit_gives_up_beside_an_open_consumer(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    slow = begun(db.another())
    (claim,) = consume(slow)
    with refused("55P03", "open transactions have claimed", "Try again"):
        set_limit(db, 5)
    assert db.value("select max_delivery_attempts from postgremq.queues") == 1
    ack(slow, claim)
    slow.execute("commit")
    set_limit(db, 5)
    assert drain(db) == [2]


@pytest.mark.parametrize("limit", [1, 5])
def test_claim_with_a_snapshot_from_before_a_change_of_the_limit(
    db: Connection, limit: int
) -> None:
    make_queue(db, max_attempts=2)
    publish(db, 1)
    consume(db, vt=0)
    slow = db.another().hold_snapshot()
    set_limit(db, limit)
    with refused("40001"):
        consume(slow, vt=0)
    slow.execute("rollback")
    assert len(consume(slow.hold_snapshot())) == (limit > 1)


def test_answer_with_a_snapshot_from_before_a_change_of_the_limit(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    (claim,) = consume(db)
    slow = db.another()
    answers = (
        "nack_message('q', %s, %s)",
        "release_message('q', %s, %s)",
        "set_vt('q', %s, %s, 1)",
    )
    for limit, answer in enumerate(answers, 2):
        slow.hold_snapshot()
        set_limit(db, limit)
        with refused("40001"):
            slow.rows(f"select postgremq.{answer}", claim.id, claim.token)
        slow.execute("rollback")
    nack(db, claim)
    assert drain(db) == [1]


def test_raw_change_beside_a_change_of_the_limit(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    make_queue(db, "p")
    (id_,) = publish(db, 7)
    lock = begun(db.another())
    bury(lock, id_, "p")
    sql = "update postgremq.queue_messages set delivery_attempts = 1 where queue_name = 'q'"
    change = db.blocked(lambda slow: slow.execute(sql))
    db.execute("update postgremq.queues set max_delivery_attempts = 5 where name = 'q'")
    lock.execute("rollback")
    change.result()
    assert drain(db) == [7]


def test_update_of_claims_does_not_take_back_an_ack_that_is_newer(q: Connection) -> None:
    publish(q, 1, 2)
    first, second = consume(q, limit=2)
    slow = begun(q.another())
    ack(slow, first)
    change = q.blocked(put_back, "status = 'processing'")
    ack(q, second)
    slow.execute("rollback")
    with refused("40001"):
        change.result()
    assert [row[1] for row in states(q)] == ["processing", "completed"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_message_that_is_put_back_while_a_cleanup_waits(q: Connection, end: str) -> None:
    publish(q, 1, 2, 3)
    drain(q)
    first = begun(q.another())
    put_back(first, "message_id = 1")
    removed = q.blocked(Connection.value, CLEAN_UP)
    put_back(q, "message_id = 2")
    first.execute(end)
    assert removed.result() == (1 if end == "commit" else 2)
    assert drain(q) == ([1, 2] if end == "commit" else [2])


def test_cleanup_counts_archived_messages_once(q: Connection) -> None:
    publish(q, 1, 2)
    drain(q)
    q.another().hold_snapshot()
    rotate(q)
    publish(q, 3)
    drain(q)
    assert q.value(CLEAN_UP) == 3
    assert states(q) == []


def test_row_that_two_sessions_insert_beside_a_rotation_is_one_message(q: Connection) -> None:
    publish(q, 1)
    q.value("select postgremq.clean_up_queue('q')")
    rotate(q)
    insert = "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 1)"
    first = begun(q.another())
    first.execute(insert)
    switch(q)
    insertion = q.blocked(lambda second: second.execute(insert))
    first.execute("commit")
    with refused("23505"):
        insertion.result()
    assert drain(q) == [1]


def test_change_under_a_snapshot_that_may_not_see_what_was_archived(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    drain(db)
    bury(db, 1)
    for change in (
        "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 9)",
        "update postgremq.queue_messages set status = 'pending', delivery_attempts = 0",
        "delete from postgremq.queue_messages",
        "delete from postgremq.messages",
        CLEAN_UP,
        "select postgremq.move_messages_to_dlq()",
        "select postgremq.requeue_dlq_messages('q')",
        "select postgremq.uninstall()",
        "update postgremq.queues set max_delivery_attempts = 5",
    ):
        db.hold_snapshot()
        with refused("PQ013"):
            db.execute(change.encode())
        db.execute("rollback")
