"""Schedulers whose role has other defaults than the server: isolation and statement_timeout."""

from collections.abc import Callable

import pytest

from pgque_dagster.client import Client
from tests.support.queues import (
    Connection,
    compact_positions,
    drain,
    last_tick,
    make_queue,
    refused,
    rows,
    send,
    value,
)

STRICT = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


def be_strict(db: Connection, level: str) -> None:
    db.execute(f"set default_transaction_isolation = '{level}'".encode())


def rotations(db: Connection) -> int:
    number: int = value(db, "select queue_cur_table from pgque.queue")
    return number


@STRICT
def test_maint_loop_rotates_whatever_the_sessions_isolation(db: Connection, level: str) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    be_strict(db, level)
    db.execute("call pgque.maint_loop('0')")
    assert rotations(db) == 1


@STRICT
def test_maint_loop_does_so_in_each_round(
    db: Connection, another: Callable[[], Connection], level: str
) -> None:
    """While a snapshot keeps a log on its second half, there is a round each second."""
    make_queue(db)
    reader = another()
    with reader.transaction():
        reader.execute("set transaction isolation level repeatable read")
        value(reader, "select pg_current_snapshot()::text")
        assert compact_positions(db) > 0
        be_strict(db, level)
        db.execute("call pgque.maint_loop('2500 ms')")


@STRICT
def test_ticker_loop_ticks_whatever_the_sessions_isolation(db: Connection, level: str) -> None:
    make_queue(db, ticker_max_lag="0", ticker_idle_period="1 day")
    be_strict(db, level)
    db.execute("update pgque.config set tick_period_ms = 1")
    send(db, "a")
    db.execute("call pgque.ticker_loop('100 ms')")
    assert (drain(db), last_tick(db)) == (["a"], 2)


@STRICT
def test_the_hint_of_maint_can_be_followed(db: Connection, level: str) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    be_strict(db, level)
    with refused("PQ013", "begin isolation level read committed;", "alter role postgres set"):
        value(db, "select pgque.maint()")
    db.execute("begin isolation level read committed")
    value(db, "select pgque.maint()")
    db.execute("commit")
    assert rotations(db) == 1


@STRICT
def test_the_client_maintains_whatever_the_roles_isolation(
    db: Connection, database_url: str, level: str
) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    name = value(db, "select current_database()")
    db.execute(f"alter database {name} set default_transaction_isolation = '{level}'".encode())
    with Client(database_url) as client:
        client.maint()
    assert rotations(db) == 1


@pytest.mark.parametrize("loop", ["ticker_loop", "maint_loop"])
def test_a_slot_ends_before_the_sessions_statement_timeout_and_says_so(
    db: Connection, another: Callable[[], Connection], loop: str
) -> None:
    make_queue(db, ticker_idle_period="0", rotation_period="1 microsecond")
    send(db, "a")
    db.execute("set statement_timeout = '2 s'")
    with refused("PQ005", "statement_timeout of postgres, 2s", "alter role postgres set"):
        db.execute(f"call pgque.{loop}('20 s')".encode())
    worked = last_tick(another()) > 1 if loop == "ticker_loop" else rotations(another()) == 1
    assert worked


def test_a_slot_shorter_than_the_statement_timeout_ends_in_silence(db: Connection) -> None:
    make_queue(db, ticker_idle_period="0")
    db.execute("set statement_timeout = '1 min'")
    db.execute("call pgque.ticker_loop('100 ms')")
    db.execute("call pgque.maint_loop('0')")
    assert rows(db, "select from pgque.tick where tick_id > 1") != []
