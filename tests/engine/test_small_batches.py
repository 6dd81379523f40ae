"""Small and large batches are read in different ways, and hold the same events in each."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    queue_id,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

Another = Callable[[], Connection]
Skip = Callable[[], None]


@pytest.fixture(params=[0, 1_000], ids=["small batch", "large batch"])
def skip(request: pytest.FixtureRequest, db: Connection) -> Skip:
    """Uses up event ids, so that the batch counts as so many more events."""
    return lambda: value(
        db,
        "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, %s)",
        request.param,
    )


def by_sql(db: Connection, batch: int) -> list[tuple[Any, ...]]:
    return rows(db, value(db, "select pgque.batch_event_sql(%s)", batch))


def test_transactions_in_progress_at_both_ends_are_told_apart(
    db: Connection, another: Another, skip: Skip
) -> None:
    make_queue(db)
    early, through, late, undone = (another() for _ in range(4))
    for session, text in ((early, "early"), (through, "through"), (undone, "undone")):
        session.execute("begin")
        send(session, text)
    tick(db)
    finish(db, next_batch(db))
    late.execute("begin")
    send(late, "late")
    early.execute("commit")
    undone.execute("rollback")
    send(db, "plain")
    skip()
    tick(db)
    batch = next_batch(db)
    for session in (through, late):
        session.execute("commit")
    assert payloads(db, batch) == ["early", "plain"]
    assert events(db, batch) == by_sql(db, batch)
    finish(db, batch)
    tick(db)
    assert sorted(drain(db)) == ["late", "through"]


def test_events_of_all_tables_are_read(db: Connection, another: Another, skip: Skip) -> None:
    make_queue(db)
    producers = [another() for _ in range(3)]
    for number, producer in enumerate(producers):
        producer.execute("begin isolation level repeatable read")
        send(producer, str(number))
        if number < 2:
            tick(db)
            finish(db, next_batch(db))
            rotate(db)
    for producer in producers:
        producer.execute("commit")
    skip()
    tick(db)
    batch = next_batch(db)
    assert payloads(db, batch) == ["0", "1", "2"]
    assert events(db, batch) == by_sql(db, batch)


def test_another_consumers_retries_are_left_out(db: Connection, skip: Skip) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "a", "b")
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [events(db, batch)[0][0]])
    finish(db, batch)
    value(db, "select pgque.maint_retry_events()")
    skip()
    tick(db)
    finish(db, next_batch(db, consumer="other"))
    mine, others = next_batch(db), next_batch(db, consumer="other")
    assert (payloads(db, mine), payloads(db, others)) == (["a"], [])
    assert events(db, mine) == by_sql(db, mine)


def test_a_subtransaction_that_was_rolled_back_is_left_out(db: Connection, skip: Skip) -> None:
    make_queue(db)
    with db.transaction():
        send(db, "kept")
        with db.transaction(force_rollback=True):
            send(db, "undone")
        send(db, "kept too")
    skip()
    tick(db)
    assert payloads(db, next_batch(db)) == ["kept", "kept too"]


def test_a_batch_of_a_transaction_in_progress_reads_as_before_the_rotation(
    db: Connection, skip: Skip
) -> None:
    make_queue(db)
    send(db, "a")
    skip()
    tick(db)
    batch = next_batch(db)
    before = events(db, batch)
    rotate(db)
    send(db, "b")
    assert events(db, batch) == before


def test_a_small_batch_alone_is_read_by_the_queues_function(db: Connection) -> None:
    make_queue(db, consumers=("c", "late"))
    small = open_batch(db, "a")
    value(db, "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, 1000)")
    finish(db, next_batch(db, consumer="late"))
    send(db, "b")
    tick(db)
    large = next_batch(db, consumer="late")
    number = queue_id(db)
    ((function,),) = rows(
        db, "select oid::regprocedure::text from pg_proc where proname = %s", f"event_{number}_read"
    )
    db.execute(f"drop function {function}".encode())
    assert payloads(db, large) == ["b"]
    with refused("42883", f"event_{number}_read"):
        events(db, small)
    value(db, "select pgque.upgrade_schema()")
    assert payloads(db, small) == ["a"]


def test_a_dropped_queue_leaves_no_function(db: Connection) -> None:
    make_queue(db)
    number = queue_id(db)
    value(db, "select pgque.drop_queue('q', true)")
    left = rows(db, "select proname from pg_proc where proname ~ %s", f"^event_{number}_")
    assert left == []


def test_nobody_calls_the_queues_read_function_by_itself(db: Connection) -> None:
    make_queue(db)
    for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
        allowed = value(
            db,
            "select has_function_privilege(%s, oid, 'execute') from pg_proc where proname = %s",
            role,
            f"event_{queue_id(db)}_read",
        )
        assert not allowed
