"""Two sessions in one moment: nothing is lost or delivered twice, and maintenance does not wait."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.messages import (
    ack,
    consume,
    drain,
    make_queue,
    publish,
    rotate,
    states,
    statistics,
    switch,
)
from tests.support.queues import Connection, refused, rows, value, wait_until_blocked

Another = Callable[[], Connection]


def test_uninstall_counts_messages_whose_publishers_have_not_committed(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    publisher, remover = another(), another()
    publisher.execute("begin")
    publish(publisher, 1)
    removal = background.submit(rows, remover, "select postgremq.uninstall()")
    wait_until_blocked(db, remover)
    publisher.execute("commit")
    with refused("PQ020", '"q"'):
        removal.result()
    assert drain(db) == [1]


def test_maintenance_does_not_wait_for_a_consumer_that_keeps_its_ack_open(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, 1, 2)
    held, _ = consume(db, limit=2)
    slow = another()
    slow.execute("begin")
    ack(slow, held)
    db.execute("set statement_timeout = '20s'")
    rotate(db)
    slow.execute("commit")
    rotate(db)
    assert [row[1] for row in states(db)] == ["completed", "processing"]


def test_message_that_is_removed_while_it_is_archived_does_not_come_back(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    drain(db)
    switch(db)
    maintenance, remover = another(), another()
    maintenance.execute("begin")
    value(maintenance, "select postgremq.maint()")
    removal = background.submit(value, remover, "select postgremq.move_messages_to_dlq()")
    wait_until_blocked(db, remover)
    maintenance.execute("commit")
    assert removal.result() == 1
    assert states(db) == []
    value(db, "select postgremq.requeue_dlq_messages('q')")
    value(db, "select postgremq.cleanup_completed_messages(0)")
    assert drain(db) == [1]


def test_higher_limit_counts_for_a_claim_that_commits_after_it(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    slow, changer = another(), another()
    slow.execute("begin")
    consume(slow, vt=0)
    sql = "update postgremq.queues set max_delivery_attempts = 5 returning name"
    change = background.submit(value, changer, sql)
    wait_until_blocked(db, changer)
    slow.execute("commit")
    change.result()
    assert drain(db) == [1]


def test_limit_is_changed_beside_an_answer(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    (claim,) = consume(db)
    slow, changer = another(), another()
    slow.execute("begin")
    ack(slow, claim)
    sql = "update postgremq.queues set max_delivery_attempts = 5 returning name"
    change = background.submit(value, changer, sql)
    wait_until_blocked(db, changer)
    slow.execute("commit")
    assert change.result() == "q"
    assert statistics(db) == (0, 0, 1, 1)


def test_update_of_claims_does_not_take_back_an_ack_that_is_newer(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    publish(db, 1, 2)
    first, second = consume(db, limit=2)
    slow, changer = another(), another()
    slow.execute("begin")
    ack(slow, first)
    sql = (
        "update postgremq.queue_messages set status = 'pending', vt = now()"
        " where status = 'processing' returning message_id"
    )
    change = background.submit(rows, changer, sql)
    wait_until_blocked(db, changer)
    ack(db, second)
    slow.execute("rollback")
    with refused("40001"):
        change.result()
    assert [row[1] for row in states(db)] == ["processing", "completed"]


def test_many_claims_of_an_open_transaction_hide_no_others(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    db.execute(
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', to_jsonb(n) from generate_series(1, 1000) n"
    )
    assert len(consume(db, vt=0, limit=1000)) == 1000
    slow = another()
    slow.execute("begin")
    assert len(consume(slow, limit=600)) == 600
    assert len(consume(db, limit=10)) == 10


def test_row_that_two_sessions_insert_beside_a_rotation_is_one_message(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    publish(db, 1)
    value(db, "select postgremq.clean_up_queue('q')")
    rotate(db)
    insert = "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 1)"
    first, second = another(), another()
    first.execute("begin")
    first.execute(insert)
    switch(db)
    insertion = background.submit(second.execute, insert)
    wait_until_blocked(db, second)
    first.execute("commit")
    with refused("23505"):
        insertion.result()
    assert drain(db) == [1]


@pytest.mark.parametrize(
    "change",
    [
        "insert into postgremq.queue_messages (queue_name, message_id) values ('q', 9)",
        "update postgremq.queue_messages set status = 'pending', delivery_attempts = 0",
        "delete from postgremq.queue_messages",
        "delete from postgremq.messages",
        "select postgremq.cleanup_completed_messages(0)",
        "select postgremq.move_messages_to_dlq()",
        "select postgremq.requeue_dlq_messages('q')",
        "update postgremq.queues set max_delivery_attempts = 5",
    ],
)
def test_change_under_a_snapshot_that_may_not_see_what_was_archived(
    db: Connection, change: str
) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1, 2)
    drain(db)
    db.execute("insert into postgremq.dead_letter_queue (queue_name, message_id) values ('q', 1)")
    db.execute("begin isolation level repeatable read")
    with refused("PQ013"):
        db.execute(change.encode())
