"""Tickers in transactions of all kinds: no event is lost, none doubled, nobody is held up."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import psycopg
import pytest

from tests.support.queues import Connection, drain, last_tick, make_queue, rows, send, tick, value

Another = Callable[[], Connection]
DUE = {"ticker_idle_period": "0"}


def test_two_tickers_at_once_make_one_tick(db: Connection, another: Another) -> None:
    make_queue(db, **DUE)
    with db.transaction():
        first = value(db, "select pgque.ticker('q')")
        second = value(another(), "select pgque.ticker('q')")
    assert (first, second, last_tick(db)) == (2, None, 2)


def test_many_tickers_at_once_number_their_ticks_without_gap(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    sessions = [another() for _ in range(4)]

    def tick_often(session: Connection) -> int:
        return sum(value(session, "select pgque.ticker()") for _ in range(100))

    with ThreadPoolExecutor() as pool:
        made = sum(pool.map(tick_often, sessions))
    assert rows(db, "select tick_id from pgque.tick order by 1") == [
        (n,) for n in range(1, made + 2)
    ]


@pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker('q')"])
def test_events_of_a_transaction_that_ticks_arrive_once(
    db: Connection, another: Another, call: str
) -> None:
    make_queue(db, **DUE)
    other = another()
    with db.transaction():
        send(db, "A")
        send(other, "between")
        value(db, f"select {call}")
        send(other, "meanwhile")
        send(db, "B")
    send(other, "other")
    tick(db)
    assert sorted(drain(db)) == ["A", "B", "between", "meanwhile", "other"]


def test_a_transaction_that_ticks_leaves_the_events_of_an_older_one_for_later(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    older, other = another(), another()
    with older.transaction():
        send(older, "older")
        with db.transaction():
            send(db, "own")
            send(other, "between")  # a later transaction that ends first
            value(db, "select pgque.ticker('q')")
        first = drain(db)
    tick(db)
    assert (first, sorted(drain(db))) == (["between"], ["older", "own"])


def test_events_of_a_transaction_that_ticks_and_consumes_arrive_once(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    other = another()
    with db.transaction():
        send(db, "A")
        send(other, "between")  # a later transaction that ends first
        tick(db)
        inside = drain(db)
        send(other, "meanwhile")
        send(db, "B")
    tick(db)
    assert (inside, sorted(drain(db))) == (["between"], ["A", "B", "meanwhile"])


def test_a_ticking_transaction_with_savepoints_loses_nothing(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    other = another()
    with db.transaction():
        with db.transaction():
            send(db, "in savepoint")
        with db.transaction(force_rollback=True):
            send(db, "rolled back")
            value(db, "select pgque.ticker()")
        send(other, "between")
        value(db, "select pgque.ticker()")
        drain(db)
        with db.transaction():
            send(db, "after tick")
        send(other, "meanwhile")
    tick(db)
    assert sorted(drain(db)) == ["after tick", "in savepoint", "meanwhile"]


def test_a_rolled_back_ticker_leaves_no_tick(db: Connection, another: Another) -> None:
    make_queue(db, **DUE)
    with db.transaction(force_rollback=True):
        value(db, "select pgque.ticker()")
        send(another(), "kept")
    tick(db)
    assert drain(db) == ["kept"]


def test_a_ticker_with_an_old_snapshot_doubles_nothing(db: Connection, another: Another) -> None:
    make_queue(db, **DUE)
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from pgque.queue")
    send(db, "once")
    tick(db)
    before = drain(db)
    with pytest.raises(psycopg.errors.SerializationFailure):
        value(old, "select pgque.ticker()")
    old.execute("rollback")
    tick(db)
    assert (before, drain(db)) == (["once"], [])


def test_a_ticker_with_an_old_snapshot_and_no_rival_loses_nothing(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from pgque.queue")
    send(db, "after the snapshot")
    value(old, "select pgque.ticker()")
    send(old, "of the ticker")
    old.execute("commit")
    first = drain(db)
    tick(db)
    assert (first, drain(db)) == ([], ["after the snapshot", "of the ticker"])


def test_a_ticker_in_an_open_transaction_holds_up_no_other_queue(
    db: Connection, another: Another
) -> None:
    make_queue(db, "busy", **DUE)
    stuck = another()
    with stuck.transaction():
        value(stuck, "select pgque.ticker()")
        make_queue(db, "free", **DUE)
        assert value(db, "select pgque.ticker()") == 1


def test_a_ticker_in_an_open_transaction_does_not_block_its_queues_ticker(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    stuck = another()
    db.execute("set lock_timeout = '1 s'")
    with stuck.transaction():
        value(stuck, "select pgque.ticker()")
        assert value(db, "select pgque.ticker()") == 0


def test_a_ticker_that_had_nothing_to_do_holds_no_queue(db: Connection, another: Another) -> None:
    make_queue(db)
    idle = another()
    with idle.transaction():
        value(idle, "select pgque.ticker('q')")
        value(idle, "select pgque.ticker()")
        assert tick(db) == 2


def test_a_request_that_comes_while_a_tick_is_made_is_not_lost(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    ticking = another()
    value(db, "select pgque.force_next_tick('q')")
    with ticking.transaction():
        value(ticking, "select pgque.ticker()")
        value(db, "select pgque.force_next_tick('q')")
    assert value(db, "select pgque.ticker()") == 1


def test_dropping_a_queue_under_running_tickers_breaks_none_of_the_others(
    db: Connection, another: Another
) -> None:
    make_queue(db, "stays", **DUE)
    sessions = [another() for _ in range(2)]
    done = [False]

    def tick_always(session: Connection) -> None:
        while not done[0]:
            # A queue may go in the middle of a run; then the next run finds it gone.
            with suppress(psycopg.errors.UndefinedTable, psycopg.errors.InternalError_):
                value(session, "select pgque.ticker()")

    with ThreadPoolExecutor() as pool:
        tickers = [pool.submit(tick_always, session) for session in sessions]
        for number in range(30):
            make_queue(db, f"drop {number}", consumers=(), **DUE)
            value(db, "select pgque.drop_queue(%s)", f"drop {number}")
        done[0] = True
        wait(tickers)
    send(db, "x", queue="stays")
    tick(db, "stays")
    assert ([ticker.exception() for ticker in tickers], drain(db, "stays")) == ([None, None], ["x"])
