"""A batch holds what committed between two ticks, each event once; limits choose the ticks."""

import pytest

from tests.support.queues import Connection, refused
from tests.support.races import Another, race


@pytest.fixture
def queue(db: Connection) -> Connection:
    db.make_queue()
    return db


def test_events_arrive_exactly_once_and_not_before_a_tick(queue: Connection) -> None:
    queue.send("a", "b")
    assert queue.next_batch() is None
    queue.tick()
    queue.send("c")
    queue.tick()
    assert (queue.drain(), queue.drain()) == (["a", "b", "c"], [])


def test_each_consumer_gets_each_event(db: Connection) -> None:
    db.make_queue(consumers=("fast", "slow"))
    db.send("a")
    db.tick()
    fast = db.drain(consumer="fast")
    db.send("b")
    db.tick()
    assert (fast, db.drain(consumer="slow")) == (["a"], ["a", "b"])


def test_a_batch_without_events_is_a_batch(queue: Connection) -> None:
    queue.tick()
    assert queue.events(queue.next_batch()) == []


def test_events_come_in_order_of_their_ids(queue: Connection, another: Another) -> None:
    late = another()
    with late.transaction():
        late.send("first id, last commit")
        queue.send("second id")
    queue.tick()
    assert queue.payloads(queue.next_batch()) == ["first id, last commit", "second id"]


def test_rolled_back_savepoints_leave_no_event(queue: Connection) -> None:
    with queue.transaction():
        queue.send("kept")
        with queue.transaction(force_rollback=True):
            queue.send("ghost")
            with queue.transaction():
                queue.send("ghost of a released savepoint")
        with queue.transaction():
            queue.send("kept in a savepoint")
    queue.tick()
    assert queue.drain() == ["kept", "kept in a savepoint"]


def test_events_of_many_subtransactions_arrive_together(queue: Connection) -> None:
    texts = [str(n) for n in range(100)]
    with queue.transaction():
        for text in texts:
            with queue.transaction():
                queue.send(text)
    queue.tick()
    assert queue.payloads(queue.next_batch()) == texts


def test_a_long_transaction_across_many_ticks_arrives_whole_and_once(
    queue: Connection, another: Another
) -> None:
    long = another()
    short = []
    with long.transaction():
        for number in range(10):
            long.send(f"long {number}")
            queue.send(f"short {number}")
            queue.tick()
            short += queue.drain()
    queue.tick()
    assert short == [f"short {n}" for n in range(10)]
    assert queue.drain() == [f"long {n}" for n in range(10)]


def test_a_batch_is_the_same_until_it_is_finished_whatever_others_do(
    queue: Connection, another: Another
) -> None:
    late = another()
    with late.transaction():
        late.send("late")
        batch = queue.open_batch("a", "b")
        first = queue.events(batch)
    queue.send("c")
    queue.tick()
    queue.rotate()
    with queue.transaction(force_rollback=True):
        queue.finish(batch)
    assert queue.next_batch() == batch
    assert queue.events(batch) == another().events(batch) == first


def test_a_batch_can_be_opened_and_read_in_one_statement(queue: Connection) -> None:
    queue.send("a", "b")
    queue.tick()
    sql = "select array_agg(ev_data) from pgque.get_batch_events(pgque.next_batch('q', 'c'))"
    assert queue.value(sql) == ["a", "b"]


@pytest.mark.parametrize("rollback", [False, True])
def test_two_sessions_at_once_get_the_same_batch(
    queue: Connection, another: Another, rollback: bool
) -> None:
    queue.send("a")
    queue.tick()
    batch, answer = race(another, Connection.next_batch, Connection.next_batch, rollback=rollback)
    assert rollback or answer.result() == batch
    assert queue.payloads(answer.result()) == ["a"]


def test_of_two_sessions_that_finish_one_batch_the_second_is_refused(
    queue: Connection, another: Another
) -> None:
    batch = queue.open_batch("a")
    _, answer = race(another, lambda one: one.finish(batch), lambda two: two.finish(batch))
    with refused("PQ003"):
        answer.result()


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
        "select ev_data from pgque.get_batch_cursor(%s, 'cur', 1)",
        "select pgque.batch_retry(%s, 1)",
    ],
)
def test_a_batch_that_is_finished_is_refused(queue: Connection, call: str) -> None:
    batch = queue.open_batch("a")
    queue.finish(batch)
    with refused("PQ003", f"batch {batch}"):
        queue.execute(call.encode(), [batch])


def test_batch_info_says_whose_the_batch_is_and_what_it_spans(queue: Connection) -> None:
    columns = "queue_name, consumer_name, prev_tick_id, tick_id, seq_end - seq_start"
    batch = queue.open_batch("a", "b")
    found = queue.rows(f"select {columns} from pgque.get_batch_info(%s)", batch)
    assert found == [("q", "c", 1, 2, 2)]


class TestReceive:
    def test_returns_as_many_messages_as_asked_for_past_empty_batches(
        self, queue: Connection
    ) -> None:
        assert queue.rows("select * from pgque.receive('q', 'c')") == []
        for _ in range(3):
            queue.tick()
        queue.send("a", "b", "c")
        queue.tick()
        received = queue.rows("select payload from pgque.receive('q', 'c', 2)")
        assert received == [("a",), ("b",)]
        queue.value("select pgque.ack(batch_id) from pgque.receive('q', 'c') limit 1")
        assert queue.next_batch() is None

    def test_refuses_to_return_none(self, queue: Connection) -> None:
        with refused("PQ005"):
            queue.rows("select * from pgque.receive('q', 'c', 0)")


AGES = "100 min", "95 min", "80 min", "10 min"


def batch_of(db: Connection, lag=None, count=None, interval=None, maximum=None) -> str | None:
    """The events of the next batch within limits, or None; finishes it."""
    call = "pgque.next_batch_custom('q', 'c', %s::interval, %s, %s::interval, %s::integer)"
    batch = db.value(f"select batch_id from {call}", lag, count, interval, maximum)
    if batch is None:
        return None
    found = db.payloads(batch)
    db.finish(batch)
    return "".join(found)


def send_and_tick(db: Connection, *ticks: str) -> None:
    """Each letter is an event."""
    for texts in ticks:
        db.send(*texts)
        db.tick()


@pytest.mark.parametrize(
    ("ticks", "ages", "limits", "batches"),
    [
        ("ab", (), {}, ["a"]),
        # The first tick with enough events, or far enough from the start, or either.
        ("abcd", (), {"count": 3}, ["abc"]),
        (["ab"], (), {"count": 3}, [None]),
        ("abc", AGES, {"interval": "20 min"}, ["ab"]),
        ("a", AGES[:2], {"interval": "20 min"}, [None]),
        ("abc", AGES, {"count": 1000, "interval": "20 min"}, ["ab"]),
        # No tick that is younger than the lag.
        ("a", ("100 min", "5 min"), {"lag": "10 min"}, [None]),
        ("ab", ("100 min", "50 min", "5 min"), {"lag": "10 min"}, ["a", None]),
        # As much of a backlog as the maximum allows, but a large tick whole.
        ("abcdefg", (), {"maximum": 3}, ["abc", "def", "g", None]),
        (["abc", "d"], (), {"maximum": 2}, ["abc"]),
        (["ab", ""], (), {"maximum": 2}, ["ab", None]),
        ("abcdef", (), {"count": 2, "maximum": 4}, ["abcd", "ef"]),
        ("abc", ("100 min", "50 min", "40 min", "5 min"), {"lag": "10 min", "maximum": 9}, ["ab"]),
    ],
)  # fmt: skip
def test_a_batch_ends_where_its_limits_say(queue: Connection, ticks, ages, limits, batches) -> None:
    send_and_tick(queue, *ticks)
    for number, age in enumerate(ages, 1):
        sql = "update pgque.tick_log set tick_time = clock_timestamp() - %s::interval"
        queue.execute(f"{sql} where tick_id = %s".encode(), [age, number])
    assert [batch_of(queue, **limits) for _ in batches] == batches


def test_events_that_were_not_enough_stay_for_later(queue: Connection) -> None:
    send_and_tick(queue, "ab")
    batch_of(queue, count=3)
    assert queue.drain() == ["a", "b"]


def test_limits_do_not_change_a_batch_that_is_open(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    assert queue.value("select pgque.next_batch('q', 'c')")
    assert batch_of(queue, count=100, maximum=100) == "a"


def test_the_answer_tells_both_ticks_and_no_batch_is_a_row_of_nulls(queue: Connection) -> None:
    call = "pgque.next_batch_custom('q', 'c', null, null, null, null::integer)"
    assert queue.rows(f"select * from {call}") == [(None,) * 7]
    send_and_tick(queue, "ab")
    columns = "prev_tick_id, cur_tick_id, cur_tick_event_seq - prev_tick_event_seq"
    assert queue.rows(f"select {columns} from {call}") == [(1, 2, 2)]


@pytest.mark.parametrize("limits", [{"maximum": 0}, {"count": 5, "maximum": 4}])
def test_limits_that_no_batch_can_meet_are_refused(queue: Connection, limits) -> None:
    with refused("PQ005", "min_lag"):
        batch_of(queue, **limits)
