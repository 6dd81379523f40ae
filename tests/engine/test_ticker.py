"""When a queue ticks."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    drain,
    last_tick,
    make_queue,
    refused,
    rows,
    send,
    tick,
    value,
)

NEVER = {
    "ticker_max_count": "1000000",
    "ticker_max_lag": "1 day",
    "ticker_idle_period": "1 day",
}


def ticker(db: Connection) -> int:
    """How many queues ticked."""
    count: int = value(db, "select pgque.ticker()")
    return count


def test_a_queue_ticks_when_it_has_enough_new_events(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_count": "3"})
    send(db, "a", "b", "c")
    assert ticker(db) == 1


def test_a_queue_waits_while_it_has_too_few_new_events(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_count": "3"})
    send(db, "first")
    ticker(db)
    send(db, "a", "b")
    assert ticker(db) == 0


def test_the_first_event_of_a_queue_is_ticked_at_once(db: Connection) -> None:
    make_queue(db, **NEVER)
    assert ticker(db) == 0
    send(db, "first")
    assert ticker(db) == 1
    send(db, "second")
    assert ticker(db) == 0


def test_events_count_once_towards_a_tick(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_count": "2"})
    send(db, "a", "b")
    ticker(db)
    send(db, "c")
    assert ticker(db) == 0


def test_one_event_is_enough_when_it_has_waited_for_the_lag(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_lag": "0"})
    send(db, "a")
    assert ticker(db) == 1


def test_without_events_the_lag_alone_makes_no_tick(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_lag": "0"})
    assert ticker(db) == 0


def test_an_idle_queue_ticks_after_its_idle_period(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_idle_period": "0"})
    assert ticker(db) == 1


@pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
def test_a_queue_that_is_switched_off_does_not_tick(db: Connection, switch: str) -> None:
    make_queue(db, ticker_max_count="1", ticker_idle_period="0", **{switch: "true"})
    send(db, "a")
    assert ticker(db) == 0


def test_a_paused_queue_catches_up_when_resumed(db: Connection) -> None:
    make_queue(db, ticker_paused="true")
    send(db, "a", "b")
    ticker(db)
    value(db, "select pgque.set_queue_config('q', 'ticker_paused', 'false')")
    tick(db)
    assert drain(db) == ["a", "b"]


def test_a_forced_tick_comes_at_the_next_run(db: Connection) -> None:
    make_queue(db, **NEVER)
    value(db, "select pgque.force_next_tick('q')")
    assert ticker(db) == 1


def test_a_forced_tick_comes_once(db: Connection) -> None:
    make_queue(db, **NEVER)
    value(db, "select pgque.force_next_tick('q')")
    value(db, "select pgque.force_next_tick('q')")
    ticker(db)
    assert ticker(db) == 0


def test_a_forced_tick_is_for_one_queue(db: Connection) -> None:
    make_queue(db, "forced", **NEVER)
    make_queue(db, "other", **NEVER)
    value(db, "select pgque.force_next_tick('forced')")
    assert (ticker(db), last_tick(db, "other")) == (1, 1)


def test_a_tick_of_one_queue_leaves_the_request_for_another(db: Connection) -> None:
    make_queue(db, "mine", **NEVER)
    make_queue(db, "other", **NEVER)
    value(db, "select pgque.force_next_tick('mine')")
    value(db, "select pgque.force_next_tick('other')")
    value(db, "select pgque.ticker('mine')")
    assert (ticker(db), last_tick(db, "other")) == (1, 2)


def test_ticker_of_one_queue_leaves_the_others_alone(db: Connection) -> None:
    make_queue(db, "mine", ticker_idle_period="0")
    make_queue(db, "other", ticker_idle_period="0")
    value(db, "select pgque.ticker('mine')")
    assert (last_tick(db, "mine"), last_tick(db, "other")) == (2, 1)


def test_ticker_of_one_queue_returns_the_ticks_id(db: Connection) -> None:
    make_queue(db, ticker_idle_period="0")
    assert value(db, "select pgque.ticker('q')") == last_tick(db) == 2


def test_ticker_of_one_queue_returns_null_when_no_tick_is_due(db: Connection) -> None:
    make_queue(db, **NEVER)
    assert value(db, "select pgque.ticker('q')") is None


def test_all_queues_that_are_due_tick_in_one_call(db: Connection) -> None:
    for number in range(20):
        make_queue(db, f"q{number}", ticker_idle_period="0")
    assert ticker(db) == 20


@pytest.mark.parametrize("call", ["pgque.ticker(%s)", "pgque.force_next_tick(%s)"])
def test_an_unknown_queue_is_named(db: Connection, call: str) -> None:
    with refused("PQ001", '"nosuch"'):
        value(db, f"select {call}", "nosuch")


@pytest.mark.parametrize("queue", ["q", "x" * 57, "it's; ünï"])
@pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker(%s)"])
def test_listeners_of_the_queue_hear_each_tick(db: Connection, queue: str, call: str) -> None:
    make_queue(db, queue, ticker_idle_period="0")
    db.execute('listen "{}"'.format(f"pgque_{queue}".replace('"', '""')).encode())
    db.execute(f"select {call}".encode(), [queue] if "%s" in call else None)
    heard = [(note.channel, note.payload) for note in db.notifies(timeout=5, stop_after=1)]
    assert heard == [(f"pgque_{queue}", "2")]


def test_ticker_loop_ticks_until_its_slot_is_over(db: Connection) -> None:
    make_queue(db, ticker_idle_period="0")
    db.execute("update pgque.config set tick_period_ms = 1, ticker_slot = '200 ms'")
    db.execute("call pgque.ticker_loop()")
    assert last_tick(db) > 3


def test_ticker_loop_commits_each_tick_by_itself(db: Connection) -> None:
    make_queue(db, ticker_idle_period="0")
    db.execute("update pgque.config set tick_period_ms = 1, ticker_slot = '200 ms'")
    db.execute("call pgque.ticker_loop()")
    ticks, transactions = rows(
        db, "select count(*), count(distinct xmin::text) from pgque.tick_log where tick_id > 1"
    )[0]
    assert ticks == transactions


def test_a_drop_that_is_not_committed_holds_up_no_other_queue(
    db: Connection, another: Callable[[], Connection]
) -> None:
    for queue in ("going", "staying"):
        make_queue(db, queue, **NEVER)
        send(db, "a", queue=queue)
        value(db, "select pgque.force_next_tick(%s)", queue)
    with another().transaction(force_rollback=True) as dropping:
        value(dropping.connection, "select pgque.drop_queue('going', true)")
        assert ticker(db) == 1
    assert drain(db, "staying") == ["a"]
    assert (ticker(db), drain(db, "going")) == (1, ["a"])
