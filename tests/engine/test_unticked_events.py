"""Events that wait for a tick: counted for lag, with the time since which the first waits."""

import pytest

from tests.support.metrics import age_ticks, health
from tests.support.queues import Another, Connection, make_queue, refused, rows, send, tick, value

FOUND = "select queue_name, events, waiting_since from pgque.unticked_events(%s)"


def test_events_that_no_tick_contains_are_counted_from_the_first(q: Connection) -> None:
    make_queue(q, "idle")
    send(q, "ticked")
    tick(q)
    with q.transaction(force_rollback=True):
        send(q, "undone")
    assert rows(q, FOUND, None) == []
    tick(q)
    send(q, "a", "b")
    sent_at = value(q, "select min(ev_time) from pgque.event_1 where ev_data <> 'ticked'")
    assert rows(q, FOUND, None) == rows(q, FOUND, "q") == [("q", 2, sent_at)]
    assert rows(q, FOUND, "idle") == []
    with refused("PQ001"):
        rows(q, FOUND, "nosuch")


def test_an_event_from_before_the_tick_waits_since_it(db: Connection, another: Another) -> None:
    make_queue(db)
    with (writer := another()).transaction():
        send(writer, "slow")
        tick(db)
    ticked_at = value(db, "select max(tick_time) from pgque.tick")
    send(db, "quick")
    assert rows(db, FOUND, None) == [("q", 1, ticked_at)]


@pytest.mark.parametrize(("age", "status"), [("1 minute", "ok"), ("3 hours", "critical")])
def test_health_counts_a_paused_queues_events_as_lag(db: Connection, age: str, status: str) -> None:
    make_queue(db)
    value(db, "select pgque.pause_queue('q')")
    send(db, "a")
    age_ticks(db, "4 hours")
    db.execute(f"update pgque.event_1 set ev_time = ev_time - interval '{age}'")
    found, detail = health(db)["consumer_lag:c"]
    assert found == status
    if status != "ok":
        assert "1 events wait for a tick, the first for 03:00:0" in detail
        assert "see ticker_running" in detail
