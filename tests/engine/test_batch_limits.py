"""next_batch_custom: which tick ends the batch."""

import pytest

from tests.support.queues import (
    Connection,
    drain,
    finish,
    make_queue,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)

AGES = "100 min", "95 min", "80 min", "10 min"


def batch_of(db: Connection, lag=None, count=None, interval=None, maximum=None) -> str | None:
    """The events of the next batch within limits, or None; finishes it."""
    call = "pgque.next_batch_custom('q', 'c', %s::interval, %s, %s::interval, %s::integer)"
    batch = value(db, f"select batch_id from {call}", lag, count, interval, maximum)
    if batch is None:
        return None
    found = payloads(db, batch)
    finish(db, batch)
    return "".join(found)


def send_and_tick(db: Connection, *ticks: str) -> None:
    """Each letter is an event."""
    for texts in ticks:
        send(db, *texts)
        tick(db)


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db)
    return db


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
    assert drain(queue) == ["a", "b"]


def test_limits_do_not_change_a_batch_that_is_open(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    assert value(queue, "select pgque.next_batch('q', 'c')")
    assert batch_of(queue, count=100, maximum=100) == "a"


def test_the_answer_tells_both_ticks_and_no_batch_is_a_row_of_nulls(queue: Connection) -> None:
    call = "pgque.next_batch_custom('q', 'c', null, null, null, null::integer)"
    assert rows(queue, f"select * from {call}") == [(None,) * 7]
    send_and_tick(queue, "ab")
    columns = "prev_tick_id, cur_tick_id, cur_tick_event_seq - prev_tick_event_seq"
    assert rows(queue, f"select {columns} from {call}") == [(1, 2, 2)]


@pytest.mark.parametrize("limits", [{"maximum": 0}, {"count": 5, "maximum": 4}])
def test_limits_that_no_batch_can_meet_are_refused(queue: Connection, limits) -> None:
    with refused("PQ005", "min_lag"):
        batch_of(queue, **limits)
