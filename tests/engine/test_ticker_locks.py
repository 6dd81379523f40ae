"""Nobody without a right on the queue can keep it from being ticked."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.logins import as_login
from tests.support.queues import Connection, connect, drain, make_queue, refused, rows, send, value

Another = Callable[[], Connection]
DUE = {"ticker_idle_period": "0"}


@pytest.fixture
def stranger(database_url: str) -> Iterator[Connection]:
    """A login that was granted nothing."""
    with connect(as_login(database_url)) as connection:
        yield connection


@pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker('q')"])
def test_a_stranger_cannot_stop_the_ticks_with_an_advisory_lock(
    db: Connection, stranger: Connection, another: Another, call: str
) -> None:
    """He takes every advisory lock that a ticker shows while it runs, and those one could guess."""
    make_queue(db, **DUE)
    ticking = another()
    with ticking.transaction():
        value(ticking, f"select {call}")
        shown = rows(
            stranger,
            "select classid::bigint::integer, objid::bigint::integer, objsubid::integer"
            " from pg_locks where locktype = 'advisory'",
        )
    tables = rows(
        stranger,
        "select c.oid::bigint::integer from pg_class c join pg_namespace n"
        " on n.oid = c.relnamespace where n.nspname = 'pgque' and c.relkind in ('r', 'S')",
    )
    for class_id, object_id, _ in [*shown, *((table, 1, 2) for (table,) in tables)]:
        stranger.execute("select pg_advisory_lock(%s::integer, %s)", [class_id, object_id])
    send(db, "a")
    value(db, f"select {call}")
    assert drain(db) == ["a"]


def test_a_ticker_takes_no_advisory_lock(db: Connection) -> None:
    make_queue(db, **DUE)
    with db.transaction():
        value(db, "select pgque.ticker()")
        held = rows(
            db, "select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        )
    assert held == []


def test_a_ticker_in_an_open_transaction_holds_up_neither_rotation_nor_settings(
    db: Connection, another: Another
) -> None:
    make_queue(db, **DUE)
    ticking = another()
    with ticking.transaction():
        value(ticking, "select pgque.ticker()")
        value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        assert value(db, "select pgque.maint_rotate_tables_step1('q')") == 1


@pytest.mark.parametrize("role", ["pgque_reader", "pgque_writer"])
def test_readers_and_writers_cannot_lock_what_the_ticker_locks(
    db: Connection, another: Another, role: str
) -> None:
    make_queue(db, **DUE)
    other = another()
    other.execute(f"set role {role}".encode())
    for statement in ("select from pgque.tick_state for update", "lock table pgque.tick_state"):
        with refused("42501"), other.transaction():
            other.execute(statement.encode())
