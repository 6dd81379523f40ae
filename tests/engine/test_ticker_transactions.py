"""Tickers in transactions of all kinds: no event is lost, none doubled, nobody is held up."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import psycopg
import pytest

from tests.support.logins import as_login
from tests.support.queues import (
    Another,
    Connection,
    connect,
    drain,
    hold_snapshot,
    last_tick,
    make_queue,
    received,
    refused,
    rows,
    send,
    tick,
    value,
)

DUE = {"ticker_idle_period": "0"}
CALLS = pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker('q')"])


@pytest.fixture
def due(db: Connection) -> Connection:
    """A queue that ticks whenever it is asked."""
    make_queue(db, **DUE)
    return db


def test_many_tickers_at_once_number_ticks_without_gap(due: Connection, another: Another) -> None:
    sessions = [another() for _ in range(4)]

    def tick_often(session: Connection) -> int:
        return sum(value(session, "select pgque.ticker()") for _ in range(100))

    with ThreadPoolExecutor() as pool:
        made = sum(pool.map(tick_often, sessions))
    found = rows(due, "select tick_id from pgque.tick order by 1")
    assert found == [(n,) for n in range(1, made + 2)]


@CALLS
def test_events_of_who_ticks_arrive_once(due: Connection, another: Another, call: str) -> None:
    other = another()
    with due.transaction():
        send(due, "A")
        send(other, "between")  # a later transaction that ends first
        value(due, f"select {call}")
        send(other, "meanwhile")
        send(due, "B")
    send(other, "other")
    assert sorted(received(due)) == ["A", "B", "between", "meanwhile", "other"]


def test_who_ticks_leaves_the_events_of_an_older_one_for_later(
    due: Connection, another: Another
) -> None:
    older, other = another(), another()
    with older.transaction():
        send(older, "older")
        with due.transaction():
            send(due, "own")
            send(other, "between")  # a later transaction that ends first
            value(due, "select pgque.ticker('q')")
        assert drain(due) == ["between"]
    assert sorted(received(due)) == ["older", "own"]


def test_one_with_savepoints_that_ticks_and_consumes_loses_none(
    due: Connection, another: Another
) -> None:
    other = another()
    with due.transaction():
        with due.transaction():
            send(due, "in savepoint")
        with due.transaction(force_rollback=True):
            send(due, "rolled back")
            value(due, "select pgque.ticker()")
        send(other, "between")  # a later transaction that ends first
        value(due, "select pgque.ticker()")
        assert drain(due) == ["between"]
        with due.transaction():
            send(due, "after tick")
        send(other, "meanwhile")
    assert sorted(received(due)) == ["after tick", "in savepoint", "meanwhile"]


def test_a_rolled_back_ticker_leaves_no_tick(due: Connection, another: Another) -> None:
    with due.transaction(force_rollback=True):
        value(due, "select pgque.ticker()")
        send(another(), "kept")
    assert received(due) == ["kept"]


def test_a_ticker_with_an_old_snapshot_loses_nothing(due: Connection, another: Another) -> None:
    old = hold_snapshot(another())
    send(due, "after the snapshot")
    value(old, "select pgque.ticker()")
    send(old, "of the ticker")
    old.commit()
    assert drain(due) == []
    hold_snapshot(old)
    assert received(due) == ["after the snapshot", "of the ticker"]
    with pytest.raises(psycopg.errors.SerializationFailure):
        value(old, "select pgque.ticker()")
    old.rollback()
    assert received(due) == []


def test_a_ticker_in_an_open_transaction_blocks_nobody(due: Connection, another: Another) -> None:
    """Neither rivals, who make no second tick, nor other queues, rotation or settings."""
    stuck = another()
    due.execute("set lock_timeout = '1 s'")
    with stuck.transaction():
        assert value(stuck, "select pgque.ticker()") == 1
        assert value(due, "select pgque.ticker('q')") is None
        assert value(due, "select pgque.ticker()") == 0
        make_queue(due, "free", **DUE)
        assert value(due, "select pgque.ticker()") == 1
        value(due, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        assert value(due, "select pgque.maint_rotate_tables_step1('q')") == 1
    assert last_tick(due) == 2


def test_a_ticker_that_had_nothing_to_do_holds_no_queue(q: Connection, another: Another) -> None:
    idle = another()
    with idle.transaction():
        value(idle, "select pgque.ticker('q')")
        value(idle, "select pgque.ticker()")
        assert tick(q) == 2


def test_a_request_while_a_tick_is_made_is_not_lost(q: Connection, another: Another) -> None:
    ticking = another()
    value(q, "select pgque.force_next_tick('q')")
    with ticking.transaction():
        value(ticking, "select pgque.ticker()")
        value(q, "select pgque.force_next_tick('q')")
    assert value(q, "select pgque.ticker()") == 1


def test_dropping_a_queue_under_running_tickers_breaks_no_other(
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
    assert [ticker.exception() for ticker in tickers] == [None, None]
    assert received(db, "stays") == ["x"]


class TestLocks:
    """Nobody without a right on the queue can keep it from being ticked."""

    @pytest.fixture
    def stranger(self, database_url: str) -> Iterator[Connection]:
        """A login that was granted nothing."""
        with connect(as_login(database_url)) as connection:
            yield connection

    @CALLS
    def test_a_stranger_cannot_stop_the_ticks(
        self, due: Connection, stranger: Connection, another: Another, call: str
    ) -> None:
        """A ticker takes none; he takes all that one could guess."""
        ticking = another()
        with ticking.transaction():
            value(ticking, f"select {call}")
            held = "select from pg_locks where locktype = 'advisory'"
            assert rows(ticking, f"{held} and pid = pg_backend_pid()") == []
        tables = rows(
            stranger,
            "select c.oid::bigint::integer from pg_class c join pg_namespace n"
            " on n.oid = c.relnamespace where n.nspname = 'pgque' and c.relkind in ('r', 'S')",
        )
        for (table,) in tables:
            stranger.execute("select pg_advisory_lock(%s::integer, 1)", [table])
        send(due, "a")
        value(due, f"select {call}")
        assert drain(due) == ["a"]

    @pytest.mark.parametrize("role", ["pgque_reader", "pgque_writer"])
    def test_readers_and_writers_cannot_lock_its_tables(self, due: Connection, role: str) -> None:
        due.execute(f"set role {role}".encode())
        for statement in ("select from pgque.tick_state for update", "lock table pgque.tick_state"):
            with refused("42501"), due.transaction():
                due.execute(statement.encode())
