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


def batch_of(
    db: Connection,
    *,
    lag: str | None = None,
    count: int | None = None,
    interval: str | None = None,
    maximum: int | None = None,
) -> list[str] | None:
    """The events of the next batch within limits, or None; finishes it."""
    batch = value(
        db,
        "select batch_id"
        " from pgque.next_batch_custom('q', 'c', %s::interval, %s, %s::interval, %s::integer)",
        lag,
        count,
        interval,
        maximum,
    )
    if batch is None:
        return None
    found = payloads(db, batch)
    finish(db, batch)
    return found


def send_and_tick(db: Connection, *events: str) -> None:
    send(db, *events)
    tick(db)


def age_ticks(db: Connection, *ages: str) -> None:
    """Sets how long ago each tick was, the first one first."""
    for number, age in enumerate(ages, 1):
        db.execute(
            "update pgque.tick_log set tick_time = clock_timestamp() - %s::interval"
            " where tick_id = %s",
            [age, number],
        )


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db)
    return db


def test_without_limits_a_batch_ends_at_the_next_tick(queue: Connection) -> None:
    send_and_tick(queue, "a")
    send_and_tick(queue, "b")
    assert batch_of(queue) == ["a"]


def test_a_batch_ends_at_the_first_tick_with_enough_events(queue: Connection) -> None:
    for text in "abcd":
        send_and_tick(queue, text)
    assert batch_of(queue, count=3) == ["a", "b", "c"]


def test_without_enough_events_there_is_no_batch(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    assert batch_of(queue, count=3) is None


def test_events_that_were_not_enough_stay_for_later(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    batch_of(queue, count=3)
    assert drain(queue) == ["a", "b"]


def test_a_batch_ends_at_the_first_tick_far_enough_from_its_start(queue: Connection) -> None:
    for text in "abc":
        send_and_tick(queue, text)
    age_ticks(queue, "100 min", "95 min", "80 min", "10 min")
    assert batch_of(queue, interval="20 min") == ["a", "b"]


def test_without_a_tick_far_enough_there_is_no_batch(queue: Connection) -> None:
    send_and_tick(queue, "a")
    age_ticks(queue, "100 min", "95 min")
    assert batch_of(queue, interval="20 min") is None


def test_either_enough_events_or_enough_time_ends_a_batch(queue: Connection) -> None:
    for text in "abc":
        send_and_tick(queue, text)
    age_ticks(queue, "100 min", "95 min", "80 min", "10 min")
    assert batch_of(queue, count=1000, interval="20 min") == ["a", "b"]


def test_ticks_younger_than_the_lag_are_passed_over(queue: Connection) -> None:
    send_and_tick(queue, "a")
    age_ticks(queue, "100 min", "5 min")
    assert batch_of(queue, lag="10 min") is None


def test_ticks_older_than_the_lag_end_a_batch(queue: Connection) -> None:
    send_and_tick(queue, "a")
    send_and_tick(queue, "b")
    age_ticks(queue, "100 min", "50 min", "5 min")
    assert (batch_of(queue, lag="10 min"), batch_of(queue, lag="10 min")) == (["a"], None)


def test_a_backlog_comes_in_batches_up_to_the_maximum(queue: Connection) -> None:
    for text in "abcdefg":
        send_and_tick(queue, text)
    assert [batch_of(queue, maximum=3) for _ in range(4)] == [
        ["a", "b", "c"],
        ["d", "e", "f"],
        ["g"],
        None,
    ]


def test_a_tick_larger_than_the_maximum_comes_alone(queue: Connection) -> None:
    send_and_tick(queue, "a", "b", "c")
    send_and_tick(queue, "d")
    assert batch_of(queue, maximum=2) == ["a", "b", "c"]


def test_the_maximum_includes_idle_ticks_after_it(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    tick(queue)
    batch_of(queue, maximum=2)
    assert batch_of(queue, maximum=2) is None


def test_minimum_and_maximum_hold_together(queue: Connection) -> None:
    for text in "abcdef":
        send_and_tick(queue, text)
    assert [batch_of(queue, count=2, maximum=4) for _ in range(2)] == [
        ["a", "b", "c", "d"],
        ["e", "f"],
    ]


def test_the_maximum_respects_the_lag(queue: Connection) -> None:
    for text in "abc":
        send_and_tick(queue, text)
    age_ticks(queue, "100 min", "50 min", "40 min", "5 min")
    assert batch_of(queue, lag="10 min", maximum=100) == ["a", "b"]


def test_limits_do_not_change_a_batch_that_is_open(queue: Connection) -> None:
    send_and_tick(queue, "a")
    send_and_tick(queue, "b")
    first = value(queue, "select pgque.next_batch('q', 'c')")
    assert batch_of(queue, count=100, maximum=100) == ["a"] and first


def test_no_batch_is_a_row_of_nulls(queue: Connection) -> None:
    assert rows(
        queue, "select * from pgque.next_batch_custom('q', 'c', null, null, null, null::integer)"
    ) == [(None,) * 7]


def test_the_answer_tells_both_ticks(queue: Connection) -> None:
    send_and_tick(queue, "a", "b")
    assert rows(
        queue,
        "select prev_tick_id, cur_tick_id, cur_tick_event_seq - prev_tick_event_seq"
        " from pgque.next_batch_custom('q', 'c', null, null, null)",
    ) == [(1, 2, 2)]


@pytest.mark.parametrize(
    "limits",
    [
        {"lag": "-1 s"},
        {"count": -1},
        {"interval": "-1 s"},
        {"maximum": 0},
        {"count": 5, "maximum": 4},
    ],
)
def test_limits_that_no_batch_can_meet_are_refused(
    queue: Connection, limits: dict[str, str | int]
) -> None:
    with refused("PQ005", "min_lag"):
        batch_of(queue, **limits)  # type: ignore[arg-type]
