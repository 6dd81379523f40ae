"""The ticks around a time window: each event is in one window, and none is missed in silence."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_ticks,
    drain,
    make_queue,
    queue_id,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

NOW = "select clock_timestamp()::text"


def window(db: Connection, start: str, end: str) -> tuple[int, int]:
    sql = "select prev_tick_id, tick_id from pgque.window_ticks('q', %s, %s)"
    (found,) = rows(db, sql, start, end)
    return found


def events(db: Connection, start: str, end: str) -> list[str]:
    """The payloads of a window, read as a reader reads them."""
    plan = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, 1)"
    slices = rows(db, plan, *window(db, start, end))
    return sorted(row[5] for (sql,) in slices for row in rows(db, sql))


def sent(db: Connection, *texts: str) -> str:
    """Sends and ticks; returns a time after that."""
    send(db, *texts)
    tick(db)
    now: str = value(db, NOW)
    return now


@pytest.fixture
def start(db: Connection) -> str:
    """A time of which the queue has the tick before it, and no event."""
    make_queue(db)
    tick(db)
    now: str = value(db, NOW)
    return now


def test_adjoining_windows_have_each_event_once(db: Connection, start: str) -> None:
    one = sent(db, "a", "b")
    send(db, "c")
    two = sent(db, "d")
    three = sent(db, "e")
    sent(db, "later")

    found = [events(db, *ends) for ends in ((start, one), (one, two), (two, three))]

    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert events(db, start, three) == ["a", "b", "c", "d", "e"]


def test_an_event_without_a_tick_before_the_end_is_in_the_next_window(
    db: Connection, start: str
) -> None:
    send(db, "committed before the end")
    end = value(db, NOW)
    after = sent(db)
    sent(db)

    assert events(db, start, end) == []
    assert events(db, end, after) == ["committed before the end"]


def test_an_event_is_in_the_window_of_its_commit_and_not_of_its_statement(
    db: Connection, start: str, another: Callable[[], Connection]
) -> None:
    slow = another()
    with slow.transaction():
        send(slow, "slow")
        end = sent(db)
    after = sent(db)
    sent(db)

    assert events(db, start, end) == []
    assert events(db, end, after) == ["slow"]


def test_a_window_stays_the_same_whatever_comes_later(db: Connection, start: str) -> None:
    end = sent(db, "a")
    tick(db)
    first = window(db, start, end)
    sent(db, "b")
    drain(db)

    assert window(db, start, end) == first


def test_a_window_without_a_tick_after_it_is_not_over(db: Connection, start: str) -> None:
    end = sent(db, "a")

    with refused("PQ005", "is not over", "last tick is 3", "ticker_idle_period"):
        window(db, start, end)

    with refused("PQ005", "is not over"):
        window(db, start, "2999-01-01 00:00+00")


def test_a_window_in_which_the_queue_was_created_begins_with_the_queue(
    db: Connection, start: str
) -> None:
    end = sent(db, "a")
    tick(db)

    assert events(db, "2020-01-01 00:00+00", end) == ["a"]


def test_a_window_before_the_queue_was_created_is_refused(db: Connection, start: str) -> None:
    with refused("PQ005", "older than queue", "created"):
        window(db, "2020-01-01 00:00+00", "2020-01-02 00:00+00")


def test_a_window_whose_events_were_rotated_is_gone(db: Connection, start: str) -> None:
    one = sent(db, "a")
    two = sent(db, "b")
    assert drain(db) == ["a", "b"]
    for _ in range(3):
        rotate(db)
        tick(db)
        drain(db)
    tick(db)
    later = value(db, NOW)
    tick(db)

    with refused("PQ005", 'of queue "q" is gone', "the oldest tick is"):
        window(db, one, two)
    with refused("PQ005", "is partly gone", "the oldest tick is"):
        window(db, one, later)


def test_a_tick_at_the_very_end_of_a_window_retains_nothing_of_it(
    db: Connection, start: str
) -> None:
    for text in "abcd":
        sent(db, text)
        drain(db)
        rotate(db)
    later = sent(db)
    tick(db)
    (oldest,) = times_of_ticks(db, "t.tick_id = q.queue_first_tick")

    with refused("PQ005", "is gone"):
        window(db, start, oldest)
    with refused("PQ005", "is partly gone"):
        window(db, oldest, later)


def test_a_window_that_ends_when_the_queue_was_created_is_older(db: Connection, start: str) -> None:
    (created,) = times_of_ticks(db, "t.tick_id = 1")

    with refused("PQ005", "older than queue"):
        window(db, "2020-01-01 00:00+00", created)


def times_of_ticks(db: Connection, condition: str) -> list[str]:
    found = rows(
        db,
        "select t.tick_time::text from pgque.tick t"
        f" join pgque.queue q on q.queue_id = t.tick_queue where {condition}",
    )
    return [time for (time,) in found]


def test_a_window_whose_ticks_were_compacted_is_gone(db: Connection, start: str) -> None:
    end = sent(db, "a")
    tick(db)
    drain(db)
    bloat_ticks(db)
    drain(db)
    db.execute("update pgque.tick_log set tick_time = clock_timestamp() where tick_id > 4")
    assert compact_ticks(db) > 0

    with refused("PQ005", "is gone"):
        window(db, start, end)


def test_each_call_has_a_higher_attempt(db: Connection, start: str) -> None:
    end = sent(db, "a")
    tick(db)
    sql = "select attempt from pgque.window_ticks('q', %s, %s)"

    attempts = [value(db, sql, start, end) for _ in range(3)]

    assert attempts == sorted(set(attempts))


def test_a_window_that_ends_before_it_begins_is_refused(db: Connection, start: str) -> None:
    with refused("PQ005", "is no time window"):
        window(db, start, start)


def test_windows_of_two_queues_do_not_mix(db: Connection, start: str) -> None:
    make_queue(db, "other")
    send(db, "theirs", queue="other")
    tick(db, "other")
    end = sent(db, "ours")
    tick(db)

    assert events(db, start, end) == ["ours"]
    assert queue_id(db, "other") != queue_id(db)
