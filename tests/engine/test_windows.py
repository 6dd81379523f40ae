"""Windows of time: the ticks around them have each event once, or the window is refused."""

import pytest

from tests.support.queues.sql import Connection, refused

NOW = "select clock_timestamp()::text"
LONG_AGO = "2020-01-01 00:00+00"


def window(db: Connection, start: str, end: str) -> tuple[int, int]:
    sql = "select prev_tick_id, tick_id from pgque.window_ticks('q', %s, %s)"
    (found,) = db.rows(sql, start, end)
    return found


def events_of(db: Connection, start: str, end: str) -> list[str]:
    """The payloads of a window, read as a reader reads them."""
    plan = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, 1)"
    slices = db.rows(plan, *window(db, start, end))
    return sorted(row[5] for (sql,) in slices for row in db.rows(sql))


def sent(db: Connection, *texts: str) -> str:
    """Sends and ticks; returns a time after that."""
    db.publish(*texts)
    now: str = db.value(NOW)
    return now


def time_of_tick(db: Connection, condition: str) -> str:
    tables = "pgque.tick t join pgque.queue q on q.queue_id = t.tick_queue"
    at: str = db.value(f"select t.tick_time::text from {tables} where {condition}")
    return at


@pytest.fixture
def start(q: Connection) -> str:
    """A time of which the queue has the tick before it, and no event."""
    return sent(q)


def test_adjoining_windows_have_each_event_of_their_queue_once(q: Connection, start: str) -> None:
    q.make_queue("other")
    q.publish("theirs", queue="other")
    assert q.queue_id("other") != q.queue_id()
    one = sent(q, "a", "b")
    q.send("c")
    two = sent(q, "d")
    three = sent(q, "e")
    sent(q, "later")
    found = [events_of(q, *ends) for ends in ((start, one), (one, two), (two, three))]
    assert found == [["a", "b"], ["c", "d"], ["e"]]
    assert events_of(q, start, three) == ["a", "b", "c", "d", "e"]


def test_events_are_in_their_next_ticks_window(q: Connection, start: str) -> None:
    slow = q.another()
    with slow.transaction():
        slow.send("slow")
        sent(q)
        q.send("without a tick before the end")
        end = q.value(NOW)
    after = sent(q)
    sent(q)
    assert events_of(q, start, end) == []
    assert events_of(q, end, after) == ["slow", "without a tick before the end"]


def test_a_window_stays_the_same_whatever_comes_later(q: Connection, start: str) -> None:
    end = sent(q, "a")
    with refused("PQ005", "is not over", "last tick is 3", "ticker_idle_period"):
        window(q, start, end)
    with refused("PQ005", "is not over"):
        window(q, start, "2999-01-01 00:00+00")
    q.tick()
    first = window(q, start, end)
    sent(q, "b")
    q.drain()
    assert window(q, start, end) == first
    sql = "select attempt from pgque.window_ticks('q', %s, %s)"
    attempts = [q.value(sql, start, end) for _ in range(3)]
    assert attempts == sorted(set(attempts))
    with refused("PQ005", "is not a time window"):
        window(q, start, start)


def test_a_window_begins_with_the_queue_and_none_is_older(q: Connection, start: str) -> None:
    end = sent(q, "a")
    q.tick()
    assert events_of(q, LONG_AGO, end) == ["a"]
    with refused("PQ005", "older than queue", "created"):
        window(q, LONG_AGO, "2020-01-02 00:00+00")
    with refused("PQ005", "older than queue"):
        window(q, LONG_AGO, time_of_tick(q, "t.tick_id = 1"))


def test_a_window_after_the_oldest_tick_is_all_there(q: Connection) -> None:
    for text in "abcd":
        q.send(text)
        q.received()
        q.rotate()
    one = sent(q)
    two = sent(q, "e")
    q.tick()
    assert events_of(q, one, two) == ["e"]


def test_a_tick_at_the_very_end_of_a_window_keeps_nothing_of_it(q: Connection, start: str) -> None:
    for text in "abcd":
        q.send(text)
        q.received()
        q.rotate()
    later = sent(q)
    q.tick()
    oldest = time_of_tick(q, "t.tick_id = q.queue_first_tick")
    with refused("PQ005", "is gone"):
        window(q, start, oldest)
    with refused("PQ005", "is partly gone"):
        window(q, oldest, later)


def test_a_window_whose_ticks_were_compacted_is_gone(q: Connection, start: str) -> None:
    end = sent(q, "a")
    q.received()
    q.bloat_ticks()
    q.value("select pgque.register_consumer_at('q', 'c', (select max(tick_id) from pgque.tick))")
    q.execute("update pgque.tick_log set tick_time = clock_timestamp() where tick_id > 4")
    assert q.compact_ticks() > 0
    with refused("PQ005", "is gone"):
        window(q, start, end)
