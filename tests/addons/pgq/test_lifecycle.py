"""Installing the add-on, installing it again, and removing it."""

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, Server, new_server
from tests.support.databases import empty_database, owned_database
from tests.support.queues import (
    Connection,
    connect,
    drain,
    refused,
    rows,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]

SCHEMAS = "select nspname from pg_namespace where nspname ~ '^pgq' order by 1"
ALL = [("pgq",), ("pgq_coop",), ("pgq_ext",), ("pgque",)]
PUBLISHING = "create trigger s after insert on t for each row execute procedure pgq.jsontriga('q')"


@pytest.fixture
def used(db: Connection) -> Connection:
    """A queue with a consumer, an event and settings of PgQ's own."""
    value(db, "select pgq.create_queue('q')")
    value(db, "select pgq.register_consumer('q', 'c')")
    value(db, "select pgq.insert_event('q', 't', 'kept')")
    tick(db)
    value(db, "select pgq.allow_extra_maint('pgque.maint_idem')")
    db.execute("update pgq.queue set queue_per_tx_limit = 9")
    db.execute("update pgq.queue set queue_extra_maint = '{pgque.maint_idem}'")
    return db


@pytest.fixture(scope="module")
def bare_server() -> Iterator[Server]:
    """A cluster without any of the roles."""
    with new_server() as server:
        yield server


def test_installing_again_keeps_everything(used: Connection) -> None:
    value(used, "select pgq_ext.set_batch_done('c', 5)")
    before = rows(used, "select * from pgq.queue")
    used.execute(INSTALL_SQL.read_bytes())
    used.execute(addon_sql("pgq"))
    assert rows(used, "select * from pgq.queue") == before
    assert value(used, "select pgq_ext.is_batch_done('c', 5)") is True
    assert drain(used) == ["kept"]


def test_installing_again_restores_the_rights(used: Connection) -> None:
    used.execute("grant all on all tables in schema pgq to public")
    used.execute("revoke select on pgq.event_1 from pgq_reader")
    used.execute(addon_sql("pgq"))
    sql = "select has_table_privilege(%s, %s, %s)"
    assert value(used, sql, "pg_monitor", "pgq.event_1", "select") is False
    assert value(used, sql, "pg_monitor", "pgq.queue", "update") is False
    assert value(used, sql, "pgq_reader", "pgq.event_1", "select") is True


def test_queues_that_were_there_before_get_views(server: Server) -> None:
    with empty_database(server) as url, connect(url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        value(db, "select pgque.create_queue('q')")
        db.execute(addon_sql("pgq"))
        assert rows(db, "select * from pgq.event_1") == []


def test_a_schema_of_somebody_else_is_left_alone(server: Server) -> None:
    with empty_database(server) as url, connect(url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        db.execute("create schema pgq create table queue (mine int)")
        with refused("42P06", "pgq"):
            db.execute(addon_sql("pgq"))
        db.execute("rollback")
        assert rows(db, "select * from pgq.queue") == []


def test_an_owner_of_the_database_installs_it(bare_server: Server) -> None:
    with (
        owned_database(bare_server, "nocreaterole") as database,
        connect(database.owner_url) as db,
        connect(database.superuser_url) as admin,
    ):
        for script in (INSTALL_SQL.read_bytes(), addon_sql("pgq")):
            with pytest.raises(psycopg.Error) as caught:
                db.execute(script)
            assert caught.value.sqlstate == "42501"
            db.execute("rollback")
            hint = caught.value.diag.message_hint or ""
            for command in re.findall(r"(?:create|grant) [^;]*;", hint):
                admin.execute(command.encode())
            db.execute(script)
        value(db, "select pgq.create_queue('q')")
        value(db, "select pgq.insert_event('q', 't', 'x')")


def test_an_owner_who_may_create_roles_needs_nobody() -> None:
    with (
        new_server() as bare,
        owned_database(bare) as database,
        connect(database.owner_url) as db,
    ):
        db.execute(INSTALL_SQL.read_bytes())
        db.execute(addon_sql("pgq"))
        value(db, "select pgq.create_queue('q')")


def test_a_dump_and_its_restore_keep_everything(
    server: Any, used: Connection, database_url: str, tmp_path: Path
) -> None:
    used.execute("create table t (id int primary key)")
    used.execute(PUBLISHING)
    value(used, "select pgq_ext.set_batch_done('c', 5)")
    settings = "select queue_name, queue_per_tx_limit, queue_extra_maint from pgq.queue"
    before = rows(used, settings)
    dump = tmp_path / "pgq.dump"
    command = [server.binary("pg_dump"), "--format=custom", f"--file={dump}", database_url]
    subprocess.run(command, check=True)
    with empty_database(server) as url:
        command = [server.binary("pg_restore"), "--exit-on-error", f"--dbname={url}", dump]
        subprocess.run(command, check=True)
        with connect(url) as db:
            value(db, "select pgque.adopt_restored_database()")
            db.execute("insert into t values (1)")
            tick(db)
            assert rows(db, settings) == before
            assert value(db, "select pgq_ext.is_batch_done('c', 5)") is True
            assert drain(db) == ["kept", '{"id":1}']
            assert value(db, "select pgq.drop_queue('q', true)") == 1


def test_removing_it_keeps_the_queues(used: Connection) -> None:
    value(used, "select pgq.uninstall()::text")
    assert rows(used, SCHEMAS) == [("pgque",)]
    assert rows(used, "select * from pgque.addon") == []
    assert drain(used) == ["kept"]
    value(used, "select pgque.drop_queue('q', true)")
    used.execute(addon_sql("pgq"))
    assert rows(used, SCHEMAS) == ALL


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (PUBLISHING, "trigger s on table public.t"),
        ("create view v as select * from pgq.queue", "view public.v"),
        ("create view v as select * from pgq.event_1", "view public.v"),
        ("select pgq_ext.set_batch_done('c', 5)", "the last batch of consumer c"),
        ("select pgq_ext.set_last_tick('c', 5)", "the last tick of consumer c"),
        ("select pgq_ext.set_event_done('c', 5, 5)", "the events that consumer c applied"),
    ],
)
def test_removing_it_loses_nothing_unasked(used: Connection, statement: str, words: str) -> None:
    used.execute("create table t (id int primary key)")
    used.execute(statement.encode())
    with refused("PQ020", words):
        value(used, "select pgq.uninstall()::text")
    assert rows(used, SCHEMAS) == ALL
    value(used, "select pgq.uninstall(true)::text")
    assert rows(used, SCHEMAS) == [("pgque",)]
    assert drain(used) == ["kept"]


def test_removing_it_waits_for_a_record_that_is_being_made(
    used: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    consumer = another()
    consumer.execute("begin")
    value(consumer, "select pgq_ext.set_batch_done('c', 5)")
    removing = background.submit(value, used, "select pgq.uninstall()::text")
    wait_until_blocked(another(), used)
    consumer.execute("commit")
    with refused("PQ020", "the last batch of consumer c"):
        removing.result()
    used.execute("set default_transaction_isolation = 'repeatable read'")
    with refused("PQ013"):
        value(used, "select pgq.uninstall()::text")


def test_it_is_removed_with_pgque(used: Connection) -> None:
    with refused("PQ020", "not read"):
        value(used, "select pgque.uninstall()::text")
    drain(used)
    value(used, "select pgque.uninstall()::text")
    assert rows(used, SCHEMAS) == []
