"""What passes is tried again, and makes no event a dead letter: rights, locks, servers."""

import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import ConnectionFailed, InvalidArgument, LeaseLost, PermissionDenied
from pgque_dagster.client.errors import TargetRefused, error_from, is_refusal, passes
from tests.client.consumer.support import Queue, running
from tests.client.target.conftest import Target
from tests.support.queues.sql import connect
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import as_user


def meets(
    q: Queue, consumer: Any, caplog: pytest.LogCaptureFixture, mend: Callable[[], Any]
) -> str:
    """Runs a consumer until it has met an error twice, and on after that is mended."""
    with caplog.at_level(logging.WARNING, "pgque.consumer"), running(consumer) as errors:
        wait_until(lambda: bool(errors) or len(caplog.records) > 1)
        assert not errors
        assert not q.is_acked()
        mend()
        wait_until(lambda: bool(errors) or q.is_acked())
        assert not errors
    assert q.db.rows("select * from pgque.retry_queue") == []
    assert q.db.rows("select * from pgque.dead_letter") == []
    return caplog.text


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_right_that_is_missing_in_the_target_for_a_while(
    q: Queue, target: Target, caplog: pytest.LogCaptureFixture, is_whole: bool
) -> None:
    target.db.execute("drop role if exists mover; create role mover login")
    target.db.execute("grant create on schema public to mover; grant all on done_nr_seq to mover")
    url = as_user(target.url, "mover")

    def apply(messages: Any, connection: Any) -> None:
        for message in messages:
            connection.execute("insert into done (id) values (%s)", (message.payload,))

    consumer = (
        q.consumer(target=url, apply=apply) if is_whole else target._replace(url=url).consumer()
    )
    q.send("a", "b")
    told = meets(q, consumer, caplog, lambda: target.db.execute("grant insert on done to mover"))
    assert "permission denied for table done" in told
    assert target.done() == ["a", "b"]
    target.db.execute("drop owned by mover; drop role mover")


def test_a_lock_that_is_held_for_a_while_in_a_handler_whose_work_is_rolled_back(
    q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    q.db.execute("create table counted (n int); insert into counted values (0)")
    consumer = q.consumer()

    @consumer.on(transactional=True)
    def count(message: Any, connection: Any) -> None:
        connection.execute("set local lock_timeout = '10ms'")
        connection.execute("update counted set n = n + 1")

    q.send("a", "b")
    with connect(q.url) as holder:
        holder.execute("begin; select from counted for update")
        told = meets(q, consumer, caplog, lambda: holder.execute("commit"))
    assert "lock timeout" in told
    assert q.db.value("select n from counted") == 2


def test_a_statement_that_takes_too_long_for_one_message_stops_no_other(q: Queue) -> None:
    q.db.execute("create table stored (id text)")
    consumer = q.consumer()

    @consumer.on(transactional=True)
    def store(message: Any, connection: Any) -> None:
        connection.execute("set local statement_timeout = '200ms'")
        connection.execute("insert into stored values (%s)", (message.payload,))
        connection.execute("select pg_sleep(60) where %s = 'slow'", (message.payload,))

    q.send("a", "slow", "b")
    with running(consumer) as errors:
        wait_until(lambda: bool(errors) or q.is_acked())
        assert not errors
    assert q.db.rows("select id from stored order by 1") == [("a",), ("b",)]
    assert q.db.value("select count(*) from pgque.retry_queue") == 1


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def raised(kind: type[psycopg.Error]) -> psycopg.Error:
    return kind("as the server says it")


def test_one_place_says_which_errors_pass() -> None:
    pg = psycopg.errors
    no_right = pg.InsufficientPrivilege("permission denied for table t")
    for error in (
        ConnectionFailed("away"),
        PermissionDenied("no right"),
        psycopg.OperationalError("connection refused"),
        caused(TargetRefused("refused"), no_right),
        caused(LeaseLost("late"), ConnectionFailed("away")),
        caused(RuntimeError("of a body"), pg.DiskFull("no space")),
        *(
            caused(error_from(cause), cause)
            for cause in map(
                raised,
                (
                    *(pg.DiskFull, pg.TooManyConnections, pg.LockNotAvailable, pg.DeadlockDetected),
                    *(pg.SerializationFailure, pg.AdminShutdown, pg.QueryCanceled, pg.IoError),
                    *(pg.ReadOnlySqlTransaction, pg.CannotConnectNow, pg.InvalidPassword),
                ),
            )
        ),
    ):
        assert passes(error), error
    for error in (
        ValueError("boom"),
        LeaseLost("taken over"),
        InvalidArgument("no such column"),
        pg.UniqueViolation("twice"),
        pg.UndefinedTable("no table"),
        pg.InvalidTextRepresentation("no number"),
        pg.ProgramLimitExceeded("too large"),
        pg.TriggeredDataChangeViolation("changed by a trigger"),
        caused(TargetRefused("refused"), pg.CheckViolation("no")),
    ):
        assert not passes(error), error
    assert is_refusal(no_right), "the message names what is refused"
    assert not is_refusal(pg.DiskFull("no space"))
    assert is_refusal(pg.CheckViolation("no"))
