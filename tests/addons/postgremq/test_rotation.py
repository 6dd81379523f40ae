"""Rotation: the states of finished messages go by TRUNCATE, and no other message is lost."""

from collections.abc import Callable

import pytest

from tests.addons.conftest import addon_sql
from tests.support.messages import (
    ack,
    consume,
    drain,
    make_queue,
    nack,
    publish,
    rotate,
    states,
    statistics,
    switch,
)
from tests.support.queues import Connection, refused, rows, value

Another = Callable[[], Connection]


def part_sizes(db: Connection) -> list[int]:
    sql = "select pg_relation_size('postgremq.state_' || n) from generate_series(0, 1) n"
    return [size for (size,) in rows(db, sql)]


def test_finished_messages_are_truncated_and_stay_listed(db: Connection) -> None:
    make_queue(db)
    publish(db, *range(20))
    drain(db)
    before = rows(db, "select * from postgremq.list_messages('q')")
    rotate(db)
    assert part_sizes(db) == [0, 0]
    assert rows(db, "select * from postgremq.list_messages('q')") == before
    assert statistics(db) == (0, 0, 20, 20)
    assert value(db, "select postgremq.cleanup_completed_messages(0)") == 20
    assert statistics(db) == (0, 0, 0, 0)


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


def test_one_call_finishes_claims_of_both_parts(db: Connection) -> None:
    make_queue(db)
    publish(db, 1, 2)
    switch(db)
    publish(db, 3, 4)
    claims = consume(db, limit=4)
    ids, tokens = zip(*[(claim.id, claim.token) for claim in claims], strict=True)
    sql = "select * from postgremq.ack_message_batch('q', %s, %s::varchar[]) order by 1"
    assert rows(db, sql, [*ids], [*tokens]) == [(1,), (2,), (3,), (4,)]
    assert rows(db, sql, [*ids], [*tokens]) == []
    assert statistics(db) == (0, 0, 4, 4)


def test_messages_of_a_message_that_was_moved_keep_their_attempts(db: Connection) -> None:
    make_queue(db, max_attempts=3)
    publish(db, 1)
    consume(db, vt=0)
    rotate(db)
    consume(db, vt=0)
    rotate(db)
    (claim,) = consume(db, vt=0)
    assert claim.attempts == 3
    rotate(db)
    assert consume(db) == []
    assert value(db, "select postgremq.move_messages_to_dlq()") == 1
    value(db, "select postgremq.requeue_dlq_messages('q')")
    assert drain(db) == [1]


def test_part_is_kept_while_a_snapshot_may_need_it(db: Connection, another: Another) -> None:
    make_queue(db)
    publish(db, 1, 2, 3)
    (claim,) = consume(db)
    old = another()
    old.execute("begin isolation level repeatable read")
    assert statistics(old) == (2, 1, 0, 3)
    ack(db, claim)
    rotate(db)
    rotate(db)
    assert max(part_sizes(db)) > 0
    assert drain(db) == [2, 3]
    assert statistics(old) == (2, 1, 0, 3)
    old.execute("commit")
    rotate(db)
    assert min(part_sizes(db)) == 0


def test_part_is_kept_while_a_transaction_publishes_into_it(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    publish(db, 1)
    late = another()
    late.execute("begin")
    publish(late, 2)
    drain(db)
    rotate(db)
    late.execute("commit")
    rotate(db)
    rotate(db)
    assert drain(db) == [2]


def test_prepared_transaction_outlasts_rotations(db: Connection) -> None:
    if value(db, "show max_prepared_transactions") == "0":
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


def test_long_backlog_is_not_moved(db: Connection) -> None:
    make_queue(db)
    db.execute(
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', to_jsonb(n) from generate_series(1, 10001) n"
    )
    rotate(db)
    publish(db, 0)
    assert min(part_sizes(db)) > 0
    got = [claim.payload for claim in consume(db, limit=None)]
    assert got == [*range(1, 10002), 0]


def test_no_rotation_in_a_stricter_transaction(db: Connection) -> None:
    db.execute("begin isolation level repeatable read")
    with refused("PQ013"):
        value(db, "select postgremq.maint()")


def test_maintenance_of_the_queue_includes_it(db: Connection) -> None:
    make_queue(db)
    db.execute(
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', '1' from generate_series(1, 1000)"
    )
    db.execute("update postgremq.rotation set period = '0'")
    value(db, "select pgque.maint()")
    assert value(db, "select postgremq.current_part()") == 1


def test_installing_again_loses_nothing(db: Connection) -> None:
    make_queue(db)
    publish(db, 1, 2, 3)
    (claim,) = consume(db)
    db.execute(addon_sql("postgremq"))
    ack(db, claim)
    assert drain(db) == [2, 3]
