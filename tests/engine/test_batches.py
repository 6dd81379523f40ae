"""A batch holds what committed between two ticks, each event once, the same on each reading."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    refused,
    rotate,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


def test_events_arrive_exactly_once(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b")
    tick(db)
    send(db, "c")
    tick(db)
    assert (drain(db), drain(db)) == (["a", "b", "c"], [])


def test_each_consumer_gets_each_event(db: Connection) -> None:
    make_queue(db, consumers=("fast", "slow"))
    send(db, "a")
    tick(db)
    fast = drain(db, consumer="fast")
    send(db, "b")
    tick(db)
    assert (fast, drain(db, consumer="slow")) == (["a"], ["a", "b"])


def test_without_a_tick_there_is_no_batch(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    assert next_batch(db) is None


def test_a_batch_without_events_is_a_batch(db: Connection) -> None:
    make_queue(db)
    tick(db)
    assert events(db, next_batch(db)) == []


def test_events_come_in_order_of_their_ids(db: Connection, another: Another) -> None:
    make_queue(db)
    late = another()
    with late.transaction():
        send(late, "first id, last commit")
        send(db, "second id")
    tick(db)
    assert payloads(db, next_batch(db)) == ["first id, last commit", "second id"]


def test_rolled_back_savepoints_leave_no_event(db: Connection) -> None:
    make_queue(db)
    with db.transaction():
        send(db, "kept")
        with db.transaction(force_rollback=True):
            send(db, "ghost")
            with db.transaction():
                send(db, "ghost of a released savepoint")
        with db.transaction():
            send(db, "kept in a savepoint")
    tick(db)
    assert drain(db) == ["kept", "kept in a savepoint"]


def test_events_of_many_subtransactions_arrive_together(db: Connection) -> None:
    make_queue(db)
    texts = [str(n) for n in range(100)]
    with db.transaction():
        for text in texts:
            with db.transaction():
                send(db, text)
    tick(db)
    assert payloads(db, next_batch(db)) == texts


def test_a_long_transaction_across_many_ticks_arrives_whole_and_once(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    long = another()
    short = []
    with long.transaction():
        for number in range(10):
            send(long, f"long {number}")
            send(db, f"short {number}")
            tick(db)
            short += drain(db)
    tick(db)
    assert (short, drain(db)) == (
        [f"short {n}" for n in range(10)],
        [f"long {n}" for n in range(10)],
    )


def test_a_prepared_transaction_arrives_when_it_is_committed(db: Connection) -> None:
    make_queue(db)
    db.execute("begin")
    send(db, "prepared")
    db.execute("prepare transaction 'p'")
    tick(db)
    before = drain(db)
    db.execute("commit prepared 'p'")
    tick(db)
    assert (before, drain(db)) == ([], ["prepared"])


def test_next_batch_returns_the_open_batch_until_it_is_finished(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    open_batch(db, "b")
    assert next_batch(db) == batch


def test_a_batch_reads_the_same_again_while_others_work(db: Connection, another: Another) -> None:
    make_queue(db)
    late = another()
    with late.transaction():
        send(late, "late")
        batch = open_batch(db, "a", "b")
        first = events(db, batch)
    send(db, "c")
    tick(db)
    rotate(db)
    assert events(db, batch) == first


def test_a_batch_reads_the_same_on_another_connection(db: Connection, another: Another) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "b")
    assert events(another(), batch) == events(db, batch)


def test_a_batch_can_be_opened_and_read_in_one_statement(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b")
    tick(db)
    read = value(
        db,
        "select array_agg(ev_data) from pgque.get_batch_events(pgque.next_batch('q', 'c'))",
    )
    assert read == ["a", "b"]


def test_two_sessions_at_once_get_the_same_batch(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    second = another()
    with db.transaction():
        batch = next_batch(db)
        answer = background.submit(next_batch, second)
        wait_until_blocked(another(), second)
    assert answer.result() == batch


def test_a_session_that_waited_for_a_rollback_opens_the_batch_itself(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    second = another()
    with db.transaction(force_rollback=True):
        next_batch(db)
        answer = background.submit(next_batch, second)
        wait_until_blocked(another(), second)
    assert payloads(db, answer.result()) == ["a"]


def test_of_two_sessions_that_finish_one_batch_the_second_is_refused(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    second = another()
    with db.transaction():
        finish(db, batch)
        answer = background.submit(finish, second, batch)
        wait_until_blocked(another(), second)
    with refused("PQ003"):
        answer.result()


def test_a_rolled_back_finish_leaves_the_batch_open(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    with db.transaction(force_rollback=True):
        finish(db, batch)
    assert (next_batch(db), payloads(db, batch)) == (batch, ["a"])


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.finish_batch(%s)",
        "select pgque.ack(%s)",
        "select * from pgque.get_batch_events(%s)",
        "select * from pgque.batch_read_plan(%s, 1)",
        "select pgque.nack_batch(%s, '{1}')",
        "select pgque.dead_letter_batch(%s, '{1}', 'bad')",
        "select pgque.event_retry(%s, 1, 0)",
    ],
)
class TestABatchThatIsNotOpen:
    def test_is_refused_after_it_was_finished(self, db: Connection, call: str) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        finish(db, batch)
        with refused("PQ003", f"batch {batch}"):
            db.execute(call.encode(), [batch])

    def test_is_refused_when_it_never_existed(self, db: Connection, call: str) -> None:
        with refused("PQ003", "batch 4711"):
            db.execute(call.encode(), [4711])

    def test_is_refused_when_it_is_null(self, db: Connection, call: str) -> None:
        with refused("PQ003"):
            db.execute(call.encode(), [None])


def test_batch_info_says_whose_the_batch_is_and_what_it_spans(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "b")
    info = value(
        db,
        "select array[queue_name, consumer_name, prev_tick_id::text, tick_id::text,"
        " (seq_end - seq_start)::text] from pgque.get_batch_info(%s)",
        batch,
    )
    assert info == ["q", "c", "1", "2", "2"]


def test_receive_returns_no_more_messages_than_asked_for(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b", "c")
    tick(db)
    received = db.execute("select payload from pgque.receive('q', 'c', 2)").fetchall()
    assert received == [("a",), ("b",)]


def test_receive_passes_over_batches_without_events(db: Connection) -> None:
    make_queue(db)
    for _ in range(3):
        tick(db)
    open_batch(db, "a")
    assert value(db, "select payload from pgque.receive('q', 'c')") == "a"


def test_receive_returns_nothing_when_there_is_no_batch(db: Connection) -> None:
    make_queue(db)
    assert db.execute("select * from pgque.receive('q', 'c')").fetchall() == []


def test_ack_of_a_received_message_finishes_its_batch(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    value(db, "select pgque.ack(batch_id) from pgque.receive('q', 'c')")
    assert next_batch(db) is None


@pytest.mark.parametrize("count", [0, -1])
def test_receive_refuses_to_return_less_than_one(db: Connection, count: int) -> None:
    make_queue(db)
    with refused("PQ005"):
        db.execute("select * from pgque.receive('q', 'c', %s)", [count])
