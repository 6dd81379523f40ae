"""While an old snapshot keeps a finished part, consumers pass it over and miss no message."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import pytest

from tests.support.messages import ack, consume, drain, make_queue, publish, switch
from tests.support.queues import Connection, value, wait_until_blocked

Another = Callable[[], Connection]

DONE = "select postgremq.is_part_done((1 - postgremq.current_part())::smallint)"


@pytest.fixture
def holder(another: Another) -> Iterator[Connection]:
    """Somebody whose snapshot sees a finished message, so that no part is truncated."""
    db = another()
    make_queue(db, max_attempts=1)
    publish(db, 0)
    db.execute("begin isolation level repeatable read")
    value(db, "select count(*) from postgremq.state")
    yield db
    db.execute("rollback")


def work_off(db: Connection) -> None:
    """Makes the other part the current one, and works off the part that was left."""
    switch(db)
    maintain(db)


def maintain(db: Connection) -> None:
    for _ in range(4):
        value(db, "select postgremq.maint()")


def test_part_is_done_once_all_is_finished(db: Connection, holder: Connection) -> None:
    (claim,) = consume(db)
    work_off(db)
    assert value(db, DONE)
    ack(db, claim)
    publish(db, 1, 2)
    assert drain(db) == [1, 2]
    assert value(db, "select pg_relation_size('postgremq.state_0')") > 0
    holder.execute("rollback")
    maintain(db)
    assert value(db, "select pg_relation_size('postgremq.state_0')") == 0


def test_transaction_that_published_before_the_turn_is_waited_for(
    db: Connection, holder: Connection, another: Another
) -> None:
    drain(db)
    late = another()
    late.execute("begin")
    publish(late, 9)
    work_off(db)
    assert not value(db, DONE)
    late.execute("commit")
    assert drain(db) == [9]
    maintain(db)
    assert value(db, DONE)


def test_maintenance_in_a_transaction_older_than_the_turn(
    db: Connection, holder: Connection, another: Another
) -> None:
    drain(db)
    late, maintenance = another(), another()
    maintenance.execute("begin")
    value(maintenance, "select pg_current_xact_id()")
    late.execute("begin")
    publish(late, 9)
    switch(db)
    value(maintenance, "select postgremq.maint()")
    maintenance.execute("commit")
    maintain(db)
    assert not value(db, DONE)
    late.execute("commit")
    assert drain(db) == [9]


def test_publisher_with_a_snapshot_from_before_the_turn(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    assert value(db, DONE)
    publish(holder, 8)
    holder.execute("commit")
    assert drain(db) == [8]


def test_publisher_that_reads_the_part_before_the_turn_and_writes_after_it(
    db: Connection, holder: Connection, another: Another, background: Executor
) -> None:
    drain(db)
    lock, slow = another(), another()
    lock.execute("begin")
    lock.execute("lock table postgremq.topic_log in access exclusive mode")
    publication = background.submit(publish, slow, 9)
    wait_until_blocked(db, slow)
    work_off(db)
    assert value(db, DONE)
    lock.execute("rollback")
    publication.result(timeout=60)
    assert drain(db) == [9]


def test_part_that_was_done_in_an_earlier_turn(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    holder.execute("rollback")
    maintain(db)
    switch(db)
    publish(db, 1)
    switch(db)
    assert not value(db, DONE)
    assert drain(db) == [1]


def requeue(db: Connection) -> None:
    value(db, "select postgremq.requeue_dlq_messages('q')")


def set_pending(db: Connection) -> None:
    db.execute(
        "update postgremq.queue_messages set status = 'pending', vt = now(), delivery_attempts = 0"
    )


@pytest.mark.parametrize("put_back", [requeue, set_pending])
@pytest.mark.parametrize("maintained", ["before", "meanwhile"])
def test_finished_message_that_is_put_back(
    db: Connection,
    holder: Connection,
    another: Another,
    put_back: Callable[[Connection], None],
    maintained: str,
) -> None:
    drain(db)
    if put_back is requeue:
        assert value(db, "select postgremq.move_messages_to_dlq()") == 1
    if maintained == "before":
        work_off(db)
        assert value(db, DONE)
    else:
        switch(db)
        value(db, "select postgremq.maint()")
    admin = another()
    admin.execute("begin")
    put_back(admin)
    maintain(db)
    admin.execute("commit")
    assert drain(db) == [0]


def test_part_that_is_done_no_more_is_not_truncated(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    set_pending(db)
    holder.execute("rollback")
    assert value(db, "select postgremq.empty_part(0::smallint)") is False
    assert drain(db) == [0]


def test_message_that_is_put_back_in_the_current_part_changes_nothing(
    db: Connection, holder: Connection
) -> None:
    drain(db)
    work_off(db)
    (id_,) = publish(db, 1)
    drain(db)
    db.execute(
        "update postgremq.queue_messages set status = 'pending', vt = now(), delivery_attempts = 0"
        " where message_id = %s",
        [id_],
    )
    assert value(db, DONE)
    assert drain(db) == [1]
    value(db, "select postgremq.move_messages_to_dlq()")
    value(db, "select postgremq.requeue_dlq_messages('q')")
    assert sorted(drain(db)) == [0, 1]


def test_truncation_waits_for_consumers_whose_transactions_overlap(
    db: Connection, holder: Connection, another: Another, background: Executor
) -> None:
    drain(db)
    work_off(db)
    first, second = another(), another()
    first.execute("begin")
    consume(first)
    holder.execute("rollback")
    assert value(db, "select postgremq.maint()") == 0
    db.execute("update postgremq.rotation_part set done_at = done_at - interval '11 minutes'")
    truncation = background.submit(value, db, "select postgremq.maint()")
    wait_until_blocked(second, db)
    first.execute("commit")
    assert truncation.result(timeout=60) or value(db, "select postgremq.maint()")
    assert consume(second) == []
