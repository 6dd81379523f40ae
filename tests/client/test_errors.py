"""Each error of the schema reaches Python as its own class, in one line, with a way out."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client import (
    AddonMissing,
    BatchLeased,
    BatchNotOpen,
    ChangeRefused,
    Client,
    ConnectionFailed,
    ConsumerInUse,
    ConsumerNotFound,
    DatabaseError,
    DeadLetterNotFound,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    Limits,
    MalformedPayload,
    NewerInstalled,
    NotAdopted,
    OlderInstalled,
    PartitionedConsumer,
    PermissionDenied,
    PgqueError,
    QueueClosed,
    QueueInUse,
    QueueNotFound,
    SchedulerMissing,
    SchemaMissing,
    SkipsEvents,
    StagingLost,
    StaleReadPlan,
    Ticker,
    TickRefused,
    TicksUnavailable,
    TransactionOutdated,
    UnreadEvents,
    UnsupportedServer,
    WrongConsumerRole,
    WrongDeployment,
    WrongIsolation,
    errors,
)
from pgque_dagster.client.calls import consumers, plans, staging
from pgque_dagster.client.calls.call import Call, nothing
from pgque_dagster.client.calls.ticks import next_tick
from tests.support.queues import (
    Connection,
    compact_positions,
    empty_halves,
    make_queue,
    open_batch,
    queue_id,
    tick,
)


def unknown_queue(client: Client, db: Connection) -> None:
    client.send("nosuch", "x")


def unknown_consumer(client: Client, db: Connection) -> None:
    make_queue(db)
    client.claim("q", "nobody", owner="me")


def batch_finished_before(client: Client, db: Connection) -> None:
    make_queue(db)
    client.finish_batch(open_batch(db, "a"))
    client.finish_batch(1)


def batch_of_somebody_else(client: Client, db: Connection) -> None:
    make_queue(db)
    tick(db)
    client.claim("q", "c", owner="holder")
    client.claim("q", "c", owner="rival")


def batch_taken_over(client: Client, db: Connection) -> None:
    make_queue(db)
    tick(db)
    mine = client.claim("q", "c", owner="me")
    assert mine is not None
    client.claim("q", "c", owner="me")
    mine.ack()


def queue_name_too_long(client: Client, db: Connection) -> None:
    client.create_queue("x" * 58)


def text_that_is_no_json(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", "{", check_json=True)


def queue_closed(client: Client, db: Connection) -> None:
    make_queue(db, disable_insert="true")
    client.send("q", "x")


def lock_that_another_session_holds(client: Client, db: Connection) -> None:
    """Is an OperationalError of psycopg, as a lost connection is."""
    make_queue(db)
    with db.transaction():
        db.execute("select from pgque.queue for update")
        with client.transaction() as connection:
            connection.execute("set local lock_timeout = '50 ms'")
            client.configure_queue("q", ticker_max_lag="1 s")


def queue_with_consumers(client: Client, db: Connection) -> None:
    make_queue(db)
    client.drop_queue("q")


def table_truncated_after_planning(client: Client, db: Connection) -> None:
    make_queue(db)
    plan = client.run(plans.read_plan(open_batch(db, "a"), 1))
    db.execute(f"truncate pgque.event_{queue_id(db)}_0".encode())
    with errors.translated():
        db.execute(plan.slices[0].sql.encode())


def event_of_another_batch(client: Client, db: Connection) -> None:
    make_queue(db)
    tick(db)
    batch = client.claim("q", "c", owner="me")
    assert batch is not None
    batch.nack([4711])
    batch.ack()


def dead_letter_gone(client: Client, db: Connection) -> None:
    client.replay_dead_letter(4711)


def transaction_older_than_a_compaction(client: Client, db: Connection) -> None:
    make_queue(db)
    with client.transaction() as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select pg_current_snapshot()")
        compact_positions(db)
        db.execute("select pgque.set_snapshot_patience('0')")
        empty_halves(db)
        client.next_batch("q", "c")


def maintenance_in_a_strict_transaction(client: Client, db: Connection) -> None:
    with client.transaction() as connection:
        connection.execute("set transaction isolation level repeatable read")
        client.maint()


def change_denied_by_a_trigger(client: Client, db: Connection) -> None:
    make_queue(db)
    db.execute("create table accounts (id int)")
    db.execute(
        "create trigger shut before insert on accounts for each row"
        " execute function pgque.jsontriga('q', 'deny')"
    )
    with errors.translated():
        db.execute("insert into accounts values (1)")


def plain_call_for_a_shared_consumer(client: Client, db: Connection) -> None:
    make_queue(db, consumers=())
    db.execute("select pgque.register_subconsumer('q', 'c', 'worker')")
    client.next_batch("q", "c")


def end_of_a_consumer_with_subconsumers(client: Client, db: Connection) -> None:
    make_queue(db, consumers=())
    db.execute("select pgque.register_subconsumer('q', 'c', 'worker')")
    client.unregister_consumer("q", "c")


def tick_of_a_paused_queue(client: Client, db: Connection) -> None:
    make_queue(db, ticker_paused="true")
    with errors.translated():
        tick(db)


def tick_of_a_restored_database(client: Client, db: Connection) -> None:
    db.execute("update pgque.config set origin_id = gen_random_uuid()")
    client.ticker()


def role_without_rights(client: Client, db: Connection) -> None:
    with client.transaction() as connection:
        connection.execute("set local role pgque_writer")
        client.create_queue("q")


def server_said_too_old(client: Client, db: Connection) -> None:
    with errors.translated():
        db.execute("do $$ begin raise exception 'too old' using errcode = 'PQ011'; end $$")


def schema_gone(client: Client, db: Connection) -> None:
    db.execute("drop schema pgque cascade")
    client.send("q", "x")


def addon_not_installed(client: Client, db: Connection) -> None:
    client.serial.publish("q", text="x")


def schema_of_an_older_version(client: Client, db: Connection) -> None:
    db.execute("drop function pgque.maint()")
    client.maint()


def schema_left_behind_by_the_package(client: Client, db: Connection) -> None:
    db.execute(
        "create or replace function pgque.version() returns text language sql "
        "as $$ select '0.1.0' $$"
    )
    installer.check_version(client.url)


def connection_killed(client: Client, db: Connection) -> None:
    db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    client.version()


def start_without_pg_cron(client: Client, db: Connection) -> None:
    client.start()


def uninstall_with_unread_events(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", "x")
    with errors.translated():
        db.execute("select pgque.uninstall()")


def installation_of_an_older_version(client: Client, db: Connection) -> None:
    with errors.translated():
        db.execute("update pgque.config set schema_version = '0.0.1'")


def ticks_before_the_position(client: Client, db: Connection) -> None:
    make_queue(db)
    client.finish_batch(open_batch(db, "a"))
    client.run(next_tick("q", "c", after_tick=1))


def staging_that_was_published(client: Client, db: Connection) -> None:
    make_queue(db)
    opened = client.run(staging.open_staging("q"))
    client.run(staging.publish(opened, [], 0))
    client.run(staging.table(opened))


def consumer_of_another_deployment(client: Client, db: Connection) -> None:
    make_queue(db)
    for deployment in ("production", "laptop"):
        client.run(consumers.enter_deployment("q", "c", deployment))


def seek_that_passes_over_events(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", "a")
    tick(db)
    client.seek("q", "c", "latest")


PROVOKED: list[tuple[Callable[[Client, Connection], None], type[PgqueError], str]] = [
    (unknown_queue, QueueNotFound, "nosuch"),
    (lock_that_another_session_holds, DatabaseError, "lock timeout"),
    (unknown_consumer, ConsumerNotFound, "nobody"),
    (batch_finished_before, BatchNotOpen, "batch 1"),
    (batch_of_somebody_else, BatchLeased, "holder"),
    (batch_taken_over, LeaseLost, "epoch"),
    (queue_name_too_long, InvalidArgument, "57 bytes"),
    (text_that_is_no_json, MalformedPayload, "json"),
    (queue_closed, QueueClosed, "disable_insert"),
    (queue_with_consumers, QueueInUse, '"c"'),
    (table_truncated_after_planning, StaleReadPlan, "plan the read again"),
    (event_of_another_batch, EventNotInBatch, "4711"),
    (dead_letter_gone, DeadLetterNotFound, "4711"),
    (transaction_older_than_a_compaction, TransactionOutdated, "try again"),
    (maintenance_in_a_strict_transaction, WrongIsolation, "read committed"),
    (change_denied_by_a_trigger, ChangeRefused, "accounts"),
    (plain_call_for_a_shared_consumer, WrongConsumerRole, "subconsumer"),
    (end_of_a_consumer_with_subconsumers, ConsumerInUse, "unregister_subconsumer"),
    (tick_of_a_paused_queue, TickRefused, "set_queue_config"),
    (tick_of_a_restored_database, NotAdopted, "adopt_restored_database"),
    (start_without_pg_cron, SchedulerMissing, "docs/scheduling.md"),
    (uninstall_with_unread_events, UnreadEvents, "uninstall(true)"),
    (installation_of_an_older_version, NewerInstalled, "0.0.1"),
    (ticks_before_the_position, TicksUnavailable, "has finished tick 2"),
    (consumer_of_another_deployment, WrongDeployment, "move_to_deployment"),
    (seek_that_passes_over_events, SkipsEvents, "i_skip => true"),
    (staging_that_was_published, StagingLost, "write the events again"),
    (role_without_rights, PermissionDenied, "pgque_admin"),
    (server_said_too_old, UnsupportedServer, "too old"),
    (schema_gone, SchemaMissing, "pgque install"),
    (addon_not_installed, AddonMissing, "pgque install --with qgres"),
    (schema_of_an_older_version, SchemaMissing, "older"),
    (schema_left_behind_by_the_package, OlderInstalled, "0.1.0"),
    (connection_killed, ConnectionFailed, "server"),
]


@pytest.mark.parametrize(
    ("provoke", "error", "word"), [pytest.param(*case, id=case[0].__name__) for case in PROVOKED]
)
def test_each_cause_has_its_error_in_one_line(
    client: Client,
    db: Connection,
    provoke: Callable[[Client, Connection], None],
    error: type[PgqueError],
    word: str,
) -> None:
    with pytest.raises(PgqueError) as caught:
        provoke(client, db)
    assert type(caught.value) is error
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_code_of_the_table_is_provoked() -> None:
    assert set(errors._BY_CODE.values()) <= {error for _, error, _ in PROVOKED}


def test_every_error_is_provoked_or_a_base() -> None:
    known = {error for error in vars(errors).values() if isinstance(error, type)}
    ours = {error for error in known if issubclass(error, PgqueError)} - {PgqueError}
    assert ours == {error for _, error, _ in PROVOKED}


def test_the_database_error_is_the_cause(client: Client) -> None:
    with pytest.raises(QueueNotFound) as caught:
        client.send("nosuch", "x")
    assert isinstance(caught.value.__cause__, psycopg.Error)


def test_a_missing_function_of_the_caller_is_not_taken_for_a_missing_schema(
    client: Client,
) -> None:
    with pytest.raises(DatabaseError, match="of_the_caller"):
        client.run(Call("select of_the_caller()", (), nothing))


def test_a_wrong_type_of_an_argument_is_named_beside_an_older_schema(
    client: Client, db: Connection
) -> None:
    make_queue(db)
    with pytest.raises(SchemaMissing, match="an argument has a type"):
        client.claim("q", "c", owner=60)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [60, 60.0, "1 minute", None, timedelta(seconds=-1), timedelta(0)])
@pytest.mark.parametrize(
    "use",
    [
        lambda client, ttl: client.claim("q", "c", owner="me", ttl=ttl),
        lambda client, ttl: client.send_idem("q", "x", "key", ttl=ttl),
        lambda client, ttl: PartitionedConsumer(client, "q", "p", slots=1).claim(
            0, worker="me", ttl=ttl
        ),
        lambda client, ttl: Ticker(client.url, maint_interval=ttl),
    ],
    ids=["claim", "send_idem", "slot", "ticker"],
)
def test_a_length_of_time_is_a_timedelta_above_zero(
    client: Client, db: Connection, use: Callable[[Client, Any], object], ttl: object
) -> None:
    make_queue(db)
    with pytest.raises(InvalidArgument, match=r"(ttl|maint_interval)=.*timedelta|out of range"):
        use(client, ttl)


@pytest.mark.parametrize("limit", ["min_lag", "min_interval"])
@pytest.mark.parametrize("value", [60, "1 minute", timedelta(seconds=-1)])
def test_a_limit_in_time_is_a_timedelta(limit: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=limit):
        Limits(**{limit: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("retry_after", [60, timedelta(seconds=-1), timedelta.max])
def test_a_wrong_retry_after_of_a_nack_is_refused_at_once(
    client: Client, db: Connection, retry_after: timedelta
) -> None:
    make_queue(db)
    tick(db)
    batch = client.claim("q", "c", owner="me")
    assert batch is not None
    with pytest.raises(InvalidArgument, match="retry_after"):
        batch.nack([], retry_after=retry_after)


def test_a_server_that_takes_no_writes_leads_to_the_primary(client: Client, db: Connection) -> None:
    make_queue(db)
    with client.transaction() as connection:
        connection.execute("set transaction read only")
        with pytest.raises(DatabaseError, match=r"read-only.*connect to the primary"):
            client.send("q", "x")


def test_an_error_leaves_the_client_usable(client: Client) -> None:
    with pytest.raises(QueueNotFound):
        client.send("nosuch", "x")
    assert client.create_queue("q") is True


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_timeout_is_not_taken_for_a_lost_connection(
    client: Client, db: Connection, setting: str
) -> None:
    make_queue(db)
    with db.transaction():
        db.execute("select from pgque.queue for update")
        with pytest.raises(DatabaseError, match="timeout"), client.transaction() as connection:
            connection.execute(f"set local {setting} = '50 ms'".encode())
            client.configure_queue("q", ticker_max_lag="1 s")


def test_purging_with_a_negative_age_is_refused(client: Client, db: Connection) -> None:
    make_queue(db)
    with pytest.raises(InvalidArgument):
        client.purge_dead_letters("q", timedelta(days=-1))
