"""Events that wait for a tick: counted for lag, with the time since which the first waits."""

from collections.abc import Callable

import pytest

from tests.support.metrics import age_ticks, health
from tests.support.queues import Connection, make_queue, refused, rows, send, tick, value

FOUND = "select queue_name, events, waiting_since from pgque.unticked_events(%s)"


def test_a_queue_whose_events_are_all_in_ticks_has_no_row(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    assert rows(db, FOUND, None) == []


def test_events_that_no_tick_contains_are_counted_from_the_first(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "idle")
    tick(db)
    send(db, "a", "b")
    sent_at = value(db, "select min(ev_time) from pgque.event_1")
    assert rows(db, FOUND, None) == [("q", 2, sent_at)]
    assert rows(db, FOUND, "q") == [("q", 2, sent_at)]
    assert rows(db, FOUND, "idle") == []


def test_ids_of_a_transaction_that_was_rolled_back_do_not_count_as_events(db: Connection) -> None:
    make_queue(db)
    with db.transaction(force_rollback=True):
        send(db, "undone")
    assert rows(db, FOUND, None) == []


def test_an_event_that_began_before_the_tick_waits_since_the_tick(
    db: Connection, another: Callable[[], Connection]
) -> None:
    make_queue(db)
    with (writer := another()).transaction():
        send(writer, "slow")
        tick(db)
    ticked_at = value(db, "select max(tick_time) from pgque.tick")
    send(db, "quick")
    assert rows(db, FOUND, None) == [("q", 1, ticked_at)]


@pytest.mark.parametrize(("age", "status"), [("1 minute", "ok"), ("3 hours", "critical")])
def test_health_counts_what_waits_on_a_paused_queue_as_lag(
    db: Connection, age: str, status: str
) -> None:
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


def test_a_queue_that_does_not_exist_is_refused(db: Connection) -> None:
    with refused("PQ001"):
        rows(db, FOUND, "nosuch")
