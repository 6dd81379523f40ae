"""What 0.3.0 recorded as applied in a target is not applied again."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from pgque_dagster.client import DatabaseError, PermissionDenied, TargetOutOfStep, last_batch
from pgque_dagster.client.connection import connect as connect_client
from pgque_dagster.client.last_batch import Applied, LastBatch
from pgque_dagster.client.ledger import Ledger
from tests.client.consumer.support import Queue
from tests.client.target.conftest import Target
from tests.support.servers.logins import as_login

# As 0.3.0 made them.
BATCHES = """
create table pgque_completed_batch (queue text, consumer text, lineage uuid, batch_id bigint,
    prev_tick_id bigint, tick_id bigint, fingerprint text, failed text,
    applied_at timestamptz not null default now(), primary key (queue, consumer))
"""
SINKS = """
create table pgque_sink_ledger (sink text, batch text,
    applied_at timestamptz not null default now(), primary key (sink, batch));
insert into pgque_sink_ledger values ('public.t', 'orders/revenue/1@2026-11-20T00:00:00+00:00')
"""
SINK_ROW = ("orders/revenue/1@2026-11-20T00:00:00+00:00",)
LAST = Applied(None, 7, 6, 8, "fingerprint", '[[1, 0.0, "bad"]]')


@pytest.fixture
def applied(target: Target) -> Target:
    """A target in which 0.3.0 has applied the first batch, without the ack."""
    target.q.send("a")
    lease = target.q.claim().lease
    target.q.claim().release()
    target.db.execute(BATCHES)
    target.db.execute(
        "insert into pgque_completed_batch values ('q', 'c', %s, %s, %s, %s, %s, null),"
        " ('q', 'other', null, 3, 2, 3, 'x', null)",
        (
            target.q.db.value("select pgque.incarnation()"),
            lease.batch_id,
            lease.prev_tick_id,
            lease.tick_id,
            target.q.db.value("select pgque.tick_fingerprint('q', %s)", lease.tick_id),
        ),
    )
    return target


def earlier(target: Target, consumer: str = "c") -> Any:
    question = "select tick_id from pgque_completed_batch where consumer = %s"
    return target.db.value(question, consumer)


def stored(target: Target) -> None:
    """0.3.0 has recorded the batch `LAST`."""
    target.db.execute(BATCHES)
    target.db.execute(
        "insert into pgque_completed_batch values ('q', 'c', null, 7, 6, 8, 'fingerprint', %s)",
        (LAST.failed,),
    )


@pytest.mark.parametrize("has_sinks", [False, True])
def test_a_batch_that_0_3_0_applied_is_only_acked(applied: Target, has_sinks: bool) -> None:
    if has_sinks:
        applied.db.execute(SINKS)
    applied.apply()
    assert applied.done() == []
    applied.q.send("b")
    applied.apply()
    assert applied.done() == ["b"]
    # A process of 0.3.0 that goes on is out of step. Others are not concerned.
    assert (earlier(applied), earlier(applied, "other")) == (-1, 3)
    sinks = applied.db.rows("select batch from pgque_sink_ledger where sink = 'public.t'")
    assert sinks == [SINK_ROW] * has_sinks


def test_a_rewind_and_a_reset_know_what_0_3_0_applied(applied: Target) -> None:
    applied.q.claim().ack()
    applied.q.send("b")
    applied.q.client.seek("q", "c", "earliest")
    assert isinstance(applied.error(), TargetOutOfStep)
    applied.consumer().rewind()
    applied.apply()
    assert applied.done() == ["b"]
    applied.q.client.seek("q", "c", "earliest")
    applied.consumer().reset()
    applied.apply()
    assert applied.done() == ["b", "a", "b"]


def test_a_reset_before_the_first_batch_holds(applied: Target) -> None:
    applied.consumer().reset()
    applied.apply()
    assert applied.done() == ["a"]


def test_a_process_of_0_3_0_that_holds_its_row_is_named(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_batch, "LOCK_WAIT", "100ms")
    stored(target)
    held = "select from pgque_completed_batch where queue = 'q' for update"
    with connect_client(target.url) as stopped, connect_client(target.url) as connection:
        stopped.execute("begin")
        stopped.execute(held.encode())
        with pytest.raises(DatabaseError, match=r"a process of 0\.3\.0 holds the row of q/c"):
            LastBatch(connection, "q", "c")
        stopped.execute("rollback")
        assert LastBatch(connection, "q", "c").read() == LAST


def test_processes_that_take_over_together_all_find_the_record(target: Target) -> None:
    stored(target)
    target.db.execute(SINKS)
    together = Barrier(4)

    def read() -> Applied:
        with connect_client(target.url) as connection:
            together.wait(60)
            return LastBatch(connection, "q", "c").read()

    with ThreadPoolExecutor(4) as pool:
        found = [running.result() for running in [pool.submit(read) for _ in range(4)]]
    assert found == [LAST] * 4
    assert earlier(target) == -1


def test_a_process_that_is_killed_while_it_takes_over_loses_nothing(target: Target) -> None:
    stored(target)
    LastBatch(target.db, "other", "other")
    killed = connect_client(target.url)
    killed.execute("begin")
    assert LastBatch(killed, "q", "c").read() == LAST
    assert earlier(target) == 8
    target.db.value("select pg_terminate_backend(%s)", killed.info.backend_pid)
    with connect_client(target.url) as connection:
        assert LastBatch(connection, "q", "c").read() == LAST
    assert earlier(target) == -1


def test_what_was_applied_since_the_takeover_stays(target: Target) -> None:
    stored(target)
    with connect_client(target.url) as connection:
        LastBatch(connection, "q", "c").forget()
        assert LastBatch(connection, "q", "c").read() == Applied()


def test_a_ledger_of_0_3_0_that_belongs_to_another_role_comes_with_the_statement(
    q: Queue, target: Target
) -> None:
    target.db.execute(SINKS)
    login = as_login(target.url, "pgque_reader")
    target.db.execute("grant select, insert, update on pgque_sink_ledger to login_reader")
    with connect_client(login) as connection:
        with pytest.raises(PermissionDenied) as caught:
            LastBatch(connection, "q", "c")
        target.db.execute(str(caught.value).partition("owner run: ")[2].encode())
        assert LastBatch(connection, "q", "c").read() == Applied()


def test_a_role_without_rights_on_the_record_of_0_3_0_is_told_which_it_needs(
    q: Queue, target: Target
) -> None:
    stored(target)
    login = as_login(target.url, "pgque_reader")
    target.db.execute("grant create on schema public to login_reader")
    with connect_client(login) as connection:
        with pytest.raises(PermissionDenied) as caught:
            LastBatch(connection, "q", "c")
        grant = str(caught.value).partition("owner run: ")[2]
        target.db.execute(grant.encode())
        assert LastBatch(connection, "q", "c").read() == LAST


def test_a_sink_finds_what_0_3_0_recorded(target: Target) -> None:
    target.db.execute(SINKS)
    noted: list[str] = []
    ledger = Ledger(None, "public.t", noted.append)
    with connect_client(target.url) as connection:
        assert ledger.has(connection, SINK_ROW)
        LastBatch(connection, "q", "c")
        assert ledger.has(connection, SINK_ROW)
        assert not ledger.has(connection, ("another batch",))
    assert noted[0] == noted[1] and len(noted) == 2
