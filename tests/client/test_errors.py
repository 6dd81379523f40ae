"""Each error of the schema reaches Python as its own class, in one line, with a way out."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgque_dagster
from pgque_dagster import installer
from pgque_dagster.client import (
    AddonMissing,
    BatchLeased,
    BatchNotOpen,
    CallRefused,
    Client,
    ConnectionFailed,
    ConsumerNotFound,
    DatabaseError,
    DatabaseUnready,
    EventNotInBatch,
    HandlerMissing,
    InvalidArgument,
    LeaseLost,
    Limits,
    MalformedPayload,
    NewerInstalled,
    OlderInstalled,
    PermissionDenied,
    PgqueError,
    QueueInUse,
    QueueNotFound,
    SchemaMissing,
    SkipsEvents,
    StagingLost,
    StaleReadPlan,
    TargetOutOfStep,
    TargetRefused,
    TicksUnavailable,
    TransactionEnded,
    TransactionOutdated,
    UnreadEvents,
    UnsupportedServer,
    errors,
    plans,
    registrations,
    staging,
)
from pgque_dagster.client.models import ConsumingAsset
from pgque_dagster.client.operation import Call, nothing
from pgque_dagster.client.replicas.status import name_replicas
from pgque_dagster.client.rights import grant, role_for
from pgque_dagster.client.ticks import next_tick
from tests.client.consumer.support import Queue
from tests.security.decisions import DECISIONS
from tests.support.queues.sql import connect
from tests.support.servers.logins import as_login


def sql(statement: str) -> Callable[[Queue], object]:
    """Runs a statement of the caller's own."""

    def run(q: Queue) -> None:
        with errors.translated():
            q.db.execute(statement.encode())

    return run


def batch_taken_over(q: Queue) -> None:
    q.tick()
    mine = q.claim()
    q.claim()
    mine.ack()


def lock_that_another_session_holds(q: Queue, setting: str = "lock_timeout") -> None:
    """Is an OperationalError of psycopg, as a lost connection is."""
    with q.db.transaction():
        q.db.execute("select from pgque.queue for update")
        with q.client.transaction() as connection:
            connection.execute(f"set local {setting} = '50 ms'".encode())
            q.client.configure_queue("q", ticker_max_lag="1 s")


def table_truncated_after_planning(q: Queue) -> None:
    plan = q.client.run(plans.read_plan(q.db.open_batch("a"), 1))
    q.db.execute(f"truncate pgque.event_{q.db.queue_id()}_0".encode())
    sql(plan.slices[0].sql)(q)


def event_of_another_batch(q: Queue) -> None:
    q.tick()
    batch = q.claim()
    batch.nack([4711])
    batch.ack()


def transaction_older_than_a_compaction(q: Queue) -> None:
    with q.client.transaction() as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_snapshot()")
        q.db.compact_positions()
        q.db.execute("select pgque.set_snapshot_patience('0')")
        q.db.empty_halves()
        q.client.next_batch("q", "c")


def in_transaction(begin: str, use: Callable[[Client], object]) -> Callable[[Queue], object]:
    def run(q: Queue) -> None:
        with q.client.transaction() as connection:
            connection.execute(begin.encode())
            use(q.client)

    return run


def ticks_before_the_position(q: Queue) -> None:
    q.client.finish_batch(q.db.open_batch("a"))
    q.client.run(next_tick("q", "c", after_tick=1))


def staging_that_was_published(q: Queue) -> None:
    opened = q.client.run(staging.open_staging("q"))
    q.client.run(staging.publish(opened, [], 0))
    q.client.run(staging.table(opened))


def deployment_of_another(q: Queue) -> None:
    for deployment in ("production", "laptop"):
        q.client.run(registrations.enter_deployment("q", "c", ConsumingAsset(deployment)))


WORKER = "select pgque.register_subconsumer('q', 's', 'worker')"
DENY = (
    "create table accounts (id int); create trigger shut before insert on accounts for each row"
    " execute function pgque.jsontriga('q', 'deny')"
)
OLD = "create or replace function pgque.version() returns text language sql return '0.1.0'"
KILL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)
PQ011 = "do $$ begin raise exception 'too old' using errcode = 'PQ011'; end $$"
READ_ONLY = "set transaction read only"
STRICT = "set transaction isolation level repeatable read"

# What is executed before, what is called, the error, and a word of it.
PROVOKED: list[tuple[str, Callable[[Queue], object], type[PgqueError], str]] = [
    ("", lambda q: q.client.send("nosuch", "x"), QueueNotFound, "nosuch"),
    ("", lock_that_another_session_holds, DatabaseUnready, "lock timeout"),
    (
        "",
        lambda q: lock_that_another_session_holds(q, "statement_timeout"),
        DatabaseUnready,
        "statement timeout",
    ),
    (
        "",
        in_transaction(READ_ONLY, lambda client: client.send("q", "x")),
        DatabaseUnready,
        "connect to the primary",
    ),
    ("", lambda q: q.client.claim("q", "nobody", owner="me"), ConsumerNotFound, "nobody"),
    ("", lambda q: q.client.finish_batch(1), BatchNotOpen, "batch 1"),
    ("", lambda q: [q.tick(), q.claim("holder"), q.claim("rival")], BatchLeased, "holder"),
    ("", batch_taken_over, LeaseLost, "epoch"),
    ("", lambda q: q.client.create_queue("x" * 58), InvalidArgument, "57 bytes"),
    ("", lambda q: q.client.send("q", "a\0b"), MalformedPayload, "NUL"),
    ("", lambda q: q.client.finish_batch(2**63), InvalidArgument, "out of range"),
    ("", lambda q: q.client.dead_letters("q", 2**31), SchemaMissing, "a size that"),
    ("", in_transaction(READ_ONLY, Client.maint), DatabaseUnready, "connect to the primary"),
    (
        "select pgque.set_queue_config('q', 'disable_insert', 'true')",
        lambda q: q.client.send("q", "x"),
        CallRefused,
        "disable_insert",
    ),
    ("", lambda q: q.client.drop_queue("q"), QueueInUse, '"c"'),
    ("", table_truncated_after_planning, StaleReadPlan, "plan the read again"),
    ("", event_of_another_batch, EventNotInBatch, "4711"),
    ("", lambda q: q.client.replay_dead_letter(4711), CallRefused, "4711"),
    ("", transaction_older_than_a_compaction, TransactionOutdated, "try again"),
    ("", in_transaction(STRICT, Client.maint), CallRefused, "read committed"),
    (DENY, sql("insert into accounts values (1)"), CallRefused, "accounts"),
    (WORKER, lambda q: q.client.next_batch("q", "s"), CallRefused, "subconsumer"),
    (
        WORKER,
        lambda q: q.client.unregister_consumer("q", "s", skip=True),
        CallRefused,
        "unregister_subconsumer",
    ),
    (
        "select pgque.set_queue_config('q', 'ticker_paused', 'true')",
        sql("select pgque.force_next_tick('q'); select pgque.ticker('q')"),
        CallRefused,
        "set_queue_config",
    ),
    (
        "update pgque.config set origin_id = gen_random_uuid()",
        lambda q: q.client.ticker(),
        CallRefused,
        "adopt_restored_database",
    ),
    ("", lambda q: q.client.start(), CallRefused, "docs/scheduling.md"),
    (
        "select pgque.send('q', 'x'::text)",
        sql("select pgque.uninstall()"),
        UnreadEvents,
        "uninstall(true)",
    ),
    ("", sql("update pgque.config set schema_version = '0.0.1'"), NewerInstalled, "0.0.1"),
    ("", ticks_before_the_position, TicksUnavailable, "has finished tick 2"),
    ("", deployment_of_another, CallRefused, "move_to_deployment"),
    ("", lambda q: [q.send("a"), q.client.seek("q", "c", "latest")], SkipsEvents, "i_skip => true"),
    ("", staging_that_was_published, StagingLost, "write the events again"),
    (
        "",
        in_transaction("set local role pgque_writer", lambda client: client.create_queue("x")),
        PermissionDenied,
        "pgque_admin",
    ),
    ("", sql(PQ011), UnsupportedServer, "too old"),
    (
        "drop schema pgque cascade",
        lambda q: q.client.send("q", "x"),
        SchemaMissing,
        "pgque install",
    ),
    (
        "",
        sql("select postgremq.publish_message('q', '{}')"),
        AddonMissing,
        "pgque install --with postgremq",
    ),
    ("drop function pgque.maint()", lambda q: q.client.maint(), SchemaMissing, "older"),
    (
        "",
        lambda q: q.client.claim("q", "c", owner=60),  # type: ignore[arg-type]
        SchemaMissing,
        "an argument has a type or a size",
    ),
    (
        "",
        lambda q: q.client.run(Call("select of_the_caller()", (), nothing)),
        DatabaseError,
        "of_the_caller",
    ),
    (OLD, lambda q: installer.check_version(q.url), OlderInstalled, "0.1.0"),
    (KILL, lambda q: q.client.version(), ConnectionFailed, "connects again"),
]


@pytest.mark.parametrize(
    ("before", "provoke", "error", "words"),
    [pytest.param(*case, id=f"{case[2].__name__}-{case[3]}") for case in PROVOKED],
)
def test_each_cause_has_its_error_in_one_line(
    q: Queue, before: str, provoke: Callable[[Queue], object], error: type[PgqueError], words: str
) -> None:
    q.db.execute(before.encode())
    with pytest.raises(PgqueError) as caught:
        provoke(q)
    assert type(caught.value) is error
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_error_and_every_code_is_provoked() -> None:
    provoked = {error for _, _, error, _ in PROVOKED}
    known = {error for error in vars(errors).values() if isinstance(error, type)}
    others = {PgqueError, HandlerMissing, TransactionEnded, TargetOutOfStep, TargetRefused}
    assert {error for error in known if issubclass(error, PgqueError)} - others == provoked
    assert set(errors._BY_CODE.values()) <= provoked


def test_the_database_error_is_the_cause_and_leaves_the_client_usable(client: Client) -> None:
    with pytest.raises(QueueNotFound) as caught:
        client.send("nosuch", "x")
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert client.create_queue("q") is True


def test_a_length_of_time_is_a_timedelta_above_zero(q: Queue) -> None:
    uses: list[Callable[[Any], object]] = [
        lambda ttl: q.client.claim("q", "c", owner="me", ttl=ttl),
        lambda ttl: q.client.send_idem("q", "x", "key", ttl=ttl),
    ]
    for ttl in (60, 60.0, "1 minute", None, timedelta(seconds=-1), timedelta(0)):
        for use in uses:
            with pytest.raises(InvalidArgument, match=r"ttl=.*timedelta|out of range"):
                use(ttl)
        for limit in ("min_lag", "min_interval"):
            if ttl not in (None, timedelta(0)):
                with pytest.raises(InvalidArgument, match=limit):
                    Limits(**{limit: ttl})  # type: ignore[arg-type]


class TestRights:
    """A refused call names the role to grant."""

    def test_each_function_that_is_called_belongs_to_the_role_that_the_grants_give_it(self) -> None:
        # The functions that statements in the package call; texts that show one to the user too.
        texts = [path.read_text() for path in Path(pgque_dagster.__file__).parent.rglob("*.py")]
        called = {name for text in texts for name in re.findall(r"\bpgque\.(\w+)\(", text)}
        called &= DECISIONS.keys()
        # What only the owner of the schema may call has an error of its own.
        wrong = {
            name: role_for(f"select pgque.{name}()")
            for name in called
            if DECISIONS[name] and role_for(f"select pgque.{name}()") not in DECISIONS[name]
        }
        assert wrong == {}
        assert len(called) > 40

    def test_a_right_on_something_else_is_not_said_to_be_a_role_alone(
        self, database_url: str
    ) -> None:
        with connect(database_url) as db:
            db.execute("create schema closed; create table closed.t (id int primary key)")
            db.execute("select pgque.create_queue('q')")
            db.execute("select pgque.register_consumer('q', 'c')")
        query = Call("select pgque.table_shape(to_regclass('closed.t'), 'q')", (), nothing)
        login = as_login(database_url, "pgque_reader", "pgque_writer")
        with Client(login) as writer:
            with pytest.raises(PermissionDenied, match="the right on what the message names, or"):
                writer.run(query)
            writer.run(name_replicas("q", "c", ["closed.t"]))

    def test_a_refused_call_says_to_whom_which_role_is_granted(self, database_url: str) -> None:
        with Client(as_login(database_url, "pgque_reader")) as reader:
            with pytest.raises(PermissionDenied) as denied:
                reader.send("orders", "x")
            assert str(denied.value) == (
                "permission denied for function send. "
                'Role "login_reader" needs pgque_writer: grant pgque_writer to "login_reader";'
            )
            with pytest.raises(PermissionDenied, match="grant pgque_admin"), reader.transaction():
                reader.run(Call("select pgque.maint()", (), nothing))
        words = r'schema pgque.*grant pgque_writer to "login"'
        with Client(as_login(database_url)) as nobody, pytest.raises(PermissionDenied, match=words):
            nobody.send("orders", "x")
        assert grant("pgque_reader", 'o"dd') == 'grant pgque_reader to "o""dd";'


@pytest.mark.parametrize(
    "change",
    [
        "do 'begin execute ''deallocate all''; end'",
        "do 'begin execute ''deallocate all; prepare _pg3_1 as select 1''; end'",
    ],
)
def test_a_prepared_statement_of_another_session_is_told_from_other_errors(
    q: Queue, change: str
) -> None:
    with psycopg.connect(q.url, autocommit=True, prepare_threshold=0) as connection:
        client = Client(connection)
        client.version()
        # As behind a pooler, psycopg does not see it.
        connection.execute(change.encode(), prepare=False)
        with pytest.raises(DatabaseError, match=r"_pg3_.*connect with prepare_threshold=None"):
            client.version()
            client.incarnation()
