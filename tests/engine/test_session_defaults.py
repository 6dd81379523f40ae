"""Schedulers whose role has other defaults than the server: isolation and statement_timeout."""

import pytest

from pgque_dagster.client import Client
from tests.support.queues import (
    Another,
    Connection,
    compact_positions,
    drain,
    hold_snapshot,
    last_tick,
    make_queue,
    refused,
    send,
    value,
)

STRICT = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


@pytest.fixture
def due(db: Connection) -> Connection:
    """A queue with an event, which rotates whenever it is asked."""
    make_queue(db, rotation_period="1 microsecond", ticker_idle_period="0")
    send(db, "a")
    return db


def be_strict(db: Connection, level: str) -> None:
    db.execute(f"set default_transaction_isolation = '{level}'".encode())


def rotations(db: Connection) -> int:
    number: int = value(db, "select queue_cur_table from pgque.queue")
    return number


@STRICT
def test_loops_work_whatever_the_sessions_isolation(due: Connection, level: str) -> None:
    be_strict(due, level)
    due.execute("update pgque.config set tick_period_ms = 1")
    due.execute("call pgque.ticker_loop('100 ms')")
    assert drain(due) == ["a"]
    due.execute("call pgque.maint_loop('0')")
    assert rotations(due) == 1


def test_maint_loop_does_so_in_each_round(q: Connection, another: Another) -> None:
    """While a snapshot keeps a log on its second half, there is a round each second."""
    reader = hold_snapshot(another())
    assert compact_positions(q) > 0
    be_strict(q, "serializable")
    q.execute("call pgque.maint_loop('1200 ms')")
    reader.rollback()


@STRICT
def test_the_hint_of_maint_can_be_followed(due: Connection, level: str) -> None:
    be_strict(due, level)
    with refused("PQ013", "begin isolation level read committed;", "alter role postgres set"):
        value(due, "select pgque.maint()")
    due.execute("begin isolation level read committed")
    value(due, "select pgque.maint()")
    due.execute("commit")
    assert rotations(due) == 1


def test_the_client_maintains_in_any_isolation(due: Connection, database_url: str) -> None:
    name = value(due, "select current_database()")
    due.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    with Client(database_url) as client:
        client.maint()
    assert rotations(due) == 1


@pytest.mark.parametrize("loop", ["ticker_loop", "maint_loop"])
def test_a_slot_ends_before_the_timeout(due: Connection, another: Another, loop: str) -> None:
    due.execute("set statement_timeout = '1200 ms'")
    with refused("PQ005", "statement_timeout of postgres, 1200ms", "alter role postgres set"):
        due.execute(f"call pgque.{loop}('20 s')".encode())
    assert last_tick(another()) > 1 if loop == "ticker_loop" else rotations(another()) == 1


def test_a_slot_shorter_than_the_statement_timeout_ends_in_silence(due: Connection) -> None:
    due.execute("set statement_timeout = '1 min'")
    due.execute("call pgque.ticker_loop('100 ms')")
    due.execute("call pgque.maint_loop('0')")
    assert last_tick(due) > 1
