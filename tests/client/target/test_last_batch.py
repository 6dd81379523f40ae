"""The row in the target belongs to one attempt at a time: the one that holds the lease."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from uuid import uuid4

import pytest

from pgque_dagster.client import CallRefused, DatabaseError, LeaseLost, last_batch
from pgque_dagster.client.connection import connect as connect_client
from pgque_dagster.client.last_batch import LastBatch, Span
from pgque_dagster.client.rights import Connection as TargetConnection
from tests.client.target.conftest import Target
from tests.support.queues.sql import value
from tests.support.servers.logins import as_login

BATCH = Span(1, 1, 2, uuid4(), "before", "after")


def row(connection: TargetConnection) -> LastBatch:
    return LastBatch(connection, "q", "c")


def holds_the_lease() -> None:
    return


def lost_the_lease() -> None:
    raise LeaseLost("another owner has the batch")


@pytest.fixture
def holder(target: Target) -> Iterator[TargetConnection]:
    """The session of an earlier attempt, in a transaction that holds the row."""
    connection = connect_client(target.url)
    ledger = row(connection)
    connection.execute("begin")
    assert ledger.lock(BATCH, holds_the_lease) is None
    ledger.record(BATCH, None)
    yield connection
    connection.close()


def is_alive(target: Target, holder: TargetConnection) -> bool:
    found: bool = value(
        target.db,
        "select count(*) > 0 from pg_stat_activity where pid = %s",
        holder.info.backend_pid,
    )
    return found


def test_who_holds_the_lease_ends_the_session_of_an_earlier_attempt(
    holder: TargetConnection, target: Target
) -> None:
    with connect_client(target.url) as connection:
        ledger = row(connection)
        with connection.transaction():
            before = value(connection, "show lock_timeout")
            assert ledger.lock(BATCH, holds_the_lease) is None
            assert value(connection, "show lock_timeout") == before
    assert not is_alive(target, holder)


def test_who_lost_the_lease_ends_no_session(holder: TargetConnection, target: Target) -> None:
    with connect_client(target.url) as connection:
        ledger = row(connection)
        with pytest.raises(LeaseLost), connection.transaction():
            ledger.lock(BATCH, lost_the_lease)
        assert is_alive(target, holder)
        holder.execute("commit")
        assert ledger.read().is_(BATCH)


def test_a_session_that_must_not_be_ended_is_named(
    holder: TargetConnection, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_batch, "LOCK_WAIT", "100ms")
    login = as_login(target.url)
    target.db.execute("grant select, insert, update on pgque_sink_ledger to login")
    with connect_client(login) as connection:
        ledger = row(connection)
        with pytest.raises(DatabaseError) as caught, connection.transaction():
            ledger.lock(BATCH, holds_the_lease)
        assert f"process {holder.info.backend_pid}" in str(caught.value)
    assert is_alive(target, holder)


def test_an_attempt_that_comes_after_later_batches_is_late_and_not_out_of_step(
    target: Target,
) -> None:
    """Its process was stopped before it took the lock, and others have gone on."""
    later = Span(2, 2, 3, BATCH.incarnation, "after", "last")
    with connect_client(target.url) as connection:
        ledger = row(connection)
        for batch in (BATCH, later):
            with connection.transaction():
                ledger.lock(batch, holds_the_lease)
                ledger.record(batch, None)
        with pytest.raises(LeaseLost), connection.transaction():
            ledger.lock(BATCH, lost_the_lease)
        assert ledger.read().is_(later)


def test_consumers_that_start_together_create_the_table_once(target: Target) -> None:
    together = Barrier(4)

    def prepare() -> None:
        with connect_client(target.url) as connection:
            together.wait(60)
            row(connection)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(25):
            for started in [pool.submit(prepare) for _ in range(4)]:
                started.result()
            assert value(target.db, "select count(*) from pgque_sink_ledger") == 1
            target.db.execute("drop table pgque_sink_ledger")


def test_the_row_is_found_in_a_later_schema_and_refused_in_two(target: Target) -> None:
    with connect_client(target.url) as connection:
        ledger = row(connection)
        with connection.transaction():
            ledger.lock(BATCH, holds_the_lease)
            ledger.record(BATCH, None)
        connection.execute("create schema nearer")
        connection.execute("set search_path = nearer, public")
        assert row(connection).read().is_(BATCH)
        connection.execute("create table nearer.pgque_sink_ledger as table pgque_sink_ledger")
        with pytest.raises(CallRefused, match="nearer, public"):
            row(connection)
