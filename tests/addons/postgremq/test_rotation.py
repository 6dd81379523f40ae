"""Rotation: the states of finished messages go by TRUNCATE, and no other message is lost."""

from collections.abc import Iterator

import pytest

from tests.addons.conftest import begun
from tests.support.addons.messages import (
    ack,
    consume,
    drain,
    maintain,
    make_queue,
    nack,
    publish,
    publish_many,
    put_back,
    rotate,
    states,
    statistics,
    switch,
)
from tests.support.queues.sql import Connection, refused

DONE = "select postgremq.is_part_done((1 - postgremq.current_part())::smallint)"


def part_sizes(db: Connection) -> list[int]:
    sql = "select pg_relation_size('postgremq.state_' || n) from generate_series(0, 1) n"
    return [size for (size,) in db.rows(sql)]


def test_finished_messages_are_truncated_and_stay_listed(q: Connection) -> None:
    publish(q, *range(20))
    drain(q)
    before = q.rows("select * from postgremq.list_messages('q')")
    rotate(q)
    assert part_sizes(q) == [0, 0]
    assert q.rows("select * from postgremq.list_messages('q')") == before
    assert statistics(q) == (0, 0, 20, 20)
    assert q.value("select postgremq.cleanup_completed_messages(0)") == 20
    assert statistics(q) == (0, 0, 0, 0)


def test_unfinished_messages_move_with_their_states(db: Connection) -> None:
    make_queue(db, max_attempts=5)
    publish(db, 1, 2, 3, 4)
    done, held, delayed = consume(db, limit=3)
    ack(db, done)
    nack(db, delayed, "now() + interval '1 hour'")
    before = states(db)
    for _ in range(3):
        rotate(db)
    assert states(db) == before
    assert [claim.payload for claim in consume(db, limit=9)] == [4]
    with refused("P0001", "Ack failed"):
        ack(db, delayed)
    ack(db, held)
    assert statistics(db) == (1, 1, 2, 4)


def test_one_call_finishes_claims_of_both_parts(q: Connection) -> None:
    publish(q, 1, 2)
    switch(q)
    publish(q, 3, 4)
    claims = consume(q, limit=4)
    ids, tokens = zip(*[(claim.id, claim.token) for claim in claims], strict=True)
    sql = "select * from postgremq.ack_message_batch('q', %s, %s::varchar[]) order by 1"
    assert q.rows(sql, [*ids], [*tokens]) == [(1,), (2,), (3,), (4,)]
    assert q.rows(sql, [*ids], [*tokens]) == []
    assert statistics(q) == (0, 0, 4, 4)


def test_part_is_kept_while_a_snapshot_may_need_it(q: Connection) -> None:
    publish(q, 1, 2, 3)
    (claim,) = consume(q)
    old = q.another().hold_snapshot()
    ack(q, claim)
    rotate(q)
    rotate(q)
    assert max(part_sizes(q)) > 0
    assert drain(q) == [2, 3]
    assert statistics(old) == (2, 1, 0, 3)
    old.execute("commit")
    rotate(q)
    assert min(part_sizes(q)) == 0


def test_late_message_is_found_after_floors_passed_it_and_it_was_moved(q: Connection) -> None:
    late = begun(q.another())
    publish(late, 1)
    publish(q, *range(100, 200))
    drain(q)
    assert q.value("select count(*) from postgremq.floor where late <> '{}'") > 0
    late.execute("commit")
    switch(q)
    q.value("select postgremq.maint()")  # before the floors are truncated
    assert q.value("select part from postgremq.open_state") == 1
    assert drain(q) == [1]


def test_moved_messages_keep_their_places(q: Connection) -> None:
    publish(q, 1, 2, 3)
    switch(q)
    publish(q, 4)
    maintain(q)
    assert part_sizes(q)[0] == 0
    assert drain(q) == [1, 2, 3, 4]


def test_prepared_transaction_outlasts_rotations(db: Connection) -> None:
    if db.value("show max_prepared_transactions") == "0":
        pytest.skip("the server has no prepared transactions")
    make_queue(db)
    publish(db, 1, 2, 3)
    db.execute("begin")
    first, second = consume(db, limit=2)
    ack(db, first)
    db.execute("prepare transaction 'two'")
    for _ in range(3):
        publish(db, 4)
        assert drain(db)[-1] == 4
        rotate(db)
    assert [row[:2] for row in states(db)[:2]] == [(first.id, "pending"), (second.id, "pending")]
    db.execute("commit prepared 'two'")
    rotate(db)
    assert [row[1] for row in states(db)[:2]] == ["completed", "processing"]
    ack(db, second)
    assert consume(db) == []


def test_long_backlog_is_not_moved(q: Connection) -> None:
    publish_many(q, 10001)
    rotate(q)
    publish(q, 0)
    assert min(part_sizes(q)) > 0
    got = [claim.payload for claim in consume(q, limit=None)]
    assert got == [*range(1, 10002), 0]


def test_maintenance_of_the_queue_includes_it(q: Connection) -> None:
    publish_many(q, 1000)
    q.execute("update postgremq.rotation set period = '0'")
    q.value("select pgque.maint()")
    assert q.value("select postgremq.current_part()") == 1
    q.hold_snapshot()
    with refused("PQ013"):
        q.value("select postgremq.maint()")


def test_snapshot_from_between_maintenance_and_its_commit(q: Connection) -> None:
    publish(q, 1, 2)
    switch(q)
    maintenance = begun(q.another())
    maintenance.value("select postgremq.clean_up_queue('q')")
    maintain(maintenance)
    old = q.another().hold_snapshot()
    maintenance.execute("commit")
    maintain(q)
    assert len(states(old)) == 2
    assert part_sizes(q)[0] > 0
    old.execute("rollback")
    maintain(q)
    assert part_sizes(q)[0] == 0


def test_maintenance_in_a_session_that_reads_the_states(q: Connection) -> None:
    publish(q, 1)
    drain(q)
    switch(q)
    for _ in range(2):
        q.value("select postgremq.maint()")
    q.execute("begin")
    q.execute("declare states cursor for select * from postgremq.queue_messages")
    assert q.value("select postgremq.maint()") == 0
    assert len(q.rows("fetch all from states")) == 1
    q.execute("commit")
    assert q.value("select postgremq.maint()") == 1


def test_maintenance_does_not_wait_for_a_consumer_that_keeps_its_ack_open(q: Connection) -> None:
    publish(q, 1, 2)
    held, _ = consume(q, limit=2)
    slow = begun(q.another())
    ack(slow, held)
    q.execute("set statement_timeout = '20s'")
    rotate(q)
    slow.execute("commit")
    rotate(q)
    assert [row[1] for row in states(q)] == ["completed", "processing"]


# While an old snapshot keeps a finished part, consumers pass it over and miss no message.


@pytest.fixture
def holder(db: Connection) -> Iterator[Connection]:
    """Somebody whose snapshot sees a message that is not finished, so that no part is truncated."""
    db = db.another()
    make_queue(db, max_attempts=1)
    publish(db, 0)
    db.execute("begin isolation level repeatable read")
    db.value("select count(*) from postgremq.state")
    yield db
    db.execute("rollback")


def work_off(db: Connection) -> None:
    """Makes the other part the current one, and works off the part that was left."""
    switch(db)
    maintain(db)


def test_part_is_done_once_all_is_finished(db: Connection, holder: Connection) -> None:
    (claim,) = consume(db)
    work_off(db)
    assert db.value(DONE)
    ack(db, claim)
    publish(db, 1, 2)
    assert drain(db) == [1, 2]
    assert part_sizes(db)[0] > 0
    holder.execute("rollback")
    maintain(db)
    assert part_sizes(db)[0] == 0


@pytest.mark.parametrize("is_maintenance_older", [False, True])
def test_transaction_that_published_before_the_turn_is_waited_for(
    db: Connection, holder: Connection, is_maintenance_older: bool
) -> None:
    drain(db)
    late, maintenance = db.another(), begun(db.another())
    maintenance.value("select pg_current_xact_id()")
    begun(late)
    publish(late, 9)
    switch(db)
    if is_maintenance_older:
        maintenance.value("select postgremq.maint()")
    maintenance.execute("commit")
    maintain(db)
    assert not db.value(DONE)
    late.execute("commit")
    assert drain(db) == [9]
    maintain(db)
    assert db.value(DONE)


def test_publisher_with_a_snapshot_from_before_the_turn(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    assert db.value(DONE)
    publish(holder, 8)
    holder.execute("commit")
    assert drain(db) == [8]


def test_publisher_that_reads_the_part_before_the_turn_and_writes_after_it(
    db: Connection, holder: Connection
) -> None:
    drain(db)
    lock = begun(db.another())
    lock.execute("lock table postgremq.topic_log in access exclusive mode")
    publication = db.blocked(publish, 9)
    work_off(db)
    assert db.value(DONE)
    lock.execute("rollback")
    publication.result()
    assert drain(db) == [9]


def test_part_that_was_done_in_an_earlier_turn(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    holder.execute("rollback")
    maintain(db)
    switch(db)
    publish(db, 1)
    switch(db)
    assert not db.value(DONE)
    assert drain(db) == [1]


@pytest.mark.parametrize(
    ("is_requeued", "maintained"), [(True, "before"), (False, "before"), (True, "meanwhile")]
)
def test_finished_message_that_is_put_back(
    db: Connection, holder: Connection, is_requeued: bool, maintained: str
) -> None:
    drain(db)
    if is_requeued:
        assert db.value("select postgremq.move_messages_to_dlq()") == 1
    if maintained == "before":
        work_off(db)
        assert db.value(DONE)
    else:
        switch(db)
        db.value("select postgremq.maint()")
    admin = begun(db.another())
    if is_requeued:
        admin.value("select postgremq.requeue_dlq_messages('q')")
    else:
        put_back(admin)
    maintain(db)
    admin.execute("commit")
    assert drain(db) == [0]


def test_part_that_is_done_no_more_is_not_truncated(db: Connection, holder: Connection) -> None:
    drain(db)
    work_off(db)
    put_back(db)
    holder.execute("rollback")
    assert db.value("select postgremq.empty_part(0::smallint)") is False
    assert drain(db) == [0]


def test_message_that_is_put_back_in_the_current_part_changes_nothing(
    db: Connection, holder: Connection
) -> None:
    drain(db)
    work_off(db)
    (id_,) = publish(db, 1)
    drain(db)
    put_back(db, f"message_id = {id_}")
    assert db.value(DONE)
    assert drain(db) == [1]
    db.value("select postgremq.move_messages_to_dlq()")
    db.value("select postgremq.requeue_dlq_messages('q')")
    assert sorted(drain(db)) == [0, 1]


def test_truncation_waits_for_consumers_whose_transactions_overlap(
    db: Connection, holder: Connection
) -> None:
    drain(db)
    work_off(db)
    first = begun(db.another())
    consume(first)
    holder.execute("rollback")
    assert db.value("select postgremq.maint()") == 0
    db.execute("update postgremq.rotation_part set done_at = done_at - interval '11 minutes'")
    truncation = db.blocked(Connection.value, "select postgremq.maint()")
    first.execute("commit")
    assert truncation.result() or db.value("select postgremq.maint()")
    assert consume(db) == []
