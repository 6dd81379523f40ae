"""Installing the add-on, installing it again, and removing it."""

from pathlib import Path
from typing import Any

import pytest

from tests.addons.conftest import addon_sql, begun
from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import empty_database
from tests.support.servers.dumps import dump, restore

SCHEMAS = "select nspname from pg_namespace where nspname ~ '^pgq' order by 1"
ALL = [("pgq",), ("pgq_coop",), ("pgq_ext",), ("pgque",)]
PUBLISHING = "create trigger s after insert on t for each row execute procedure pgq.jsontriga('q')"


@pytest.fixture
def used(db: Connection) -> Connection:
    """A queue with a consumer, an event and settings of PgQ's own."""
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'c')")
    db.value("select pgq.insert_event('q', 't', 'kept')")
    db.tick()
    db.execute("update pgq.queue set queue_per_tx_limit = 9")
    return db


def test_installing_again_keeps_everything_and_restores_the_rights(used: Connection) -> None:
    used.value("select pgq_ext.set_batch_done('c', 5)")
    used.execute("grant all on all tables in schema pgq to public")
    before = used.rows("select * from pgq.queue")
    used.execute(INSTALL_SQL.read_bytes())
    used.execute(addon_sql("pgq"))
    assert used.rows("select * from pgq.queue") == before
    assert used.value("select pgq_ext.is_batch_done('c', 5)") is True
    assert used.drain() == ["kept"]
    sql = "select has_table_privilege(%s, %s, %s)"
    assert used.value(sql, "pg_monitor", "pgq.queue", "update") is False


def test_a_dump_and_its_restore_keep_everything(
    server: Any, used: Connection, database_url: str, tmp_path: Path
) -> None:
    used.execute("create table t (id int primary key)")
    used.execute(PUBLISHING)
    used.value("select pgq_ext.set_batch_done('c', 5)")
    settings = "select queue_name, queue_per_tx_limit from pgq.queue"
    before = used.rows(settings)
    dump(server, database_url, tmp_path / "dump")
    with empty_database(server) as url:
        restore(server, tmp_path / "dump", url)
        with connect(url) as db:
            db.value("select pgque.adopt_restored_database()")
            db.execute("insert into t values (1)")
            db.tick()
            assert db.rows(settings) == before
            assert db.value("select pgq_ext.is_batch_done('c', 5)") is True
            assert db.drain() == ["kept", '{"id":1}']
            assert db.value("select pgq.drop_queue('q', true)") == 1


def test_removing_it_keeps_the_queues(used: Connection) -> None:
    used.value("select pgq.uninstall()::text")
    assert used.rows(SCHEMAS) == [("pgque",)]
    assert used.rows("select * from pgque.addon") == []
    assert used.drain() == ["kept"]
    used.value("select pgque.drop_queue('q', true)")
    used.execute(addon_sql("pgq"))
    assert used.rows(SCHEMAS) == ALL


def test_uninstalling_loses_no_data_unless_forced(used: Connection) -> None:
    used.execute("create table t (id int primary key)")
    for statement, words in (
        (PUBLISHING, "trigger s on table public.t"),
        ("create view v as select * from pgq.queue", "view public.v"),
        ("select pgq_ext.set_batch_done('c', 5)", "the last batch of consumer c"),
        ("select pgq_ext.set_last_tick('c', 5)", "the last tick of consumer c"),
        ("select pgq_ext.set_event_done('c', 5, 5)", "the events that consumer c applied"),
    ):
        with used.transaction(force_rollback=True):
            used.execute(statement.encode())
            with refused("PQ020", words), used.transaction():
                used.value("select pgq.uninstall()::text")
            assert used.rows(SCHEMAS) == ALL
            used.value("select pgq.uninstall(true)::text")
            assert used.rows(SCHEMAS) == [("pgque",)]
            assert used.drain() == ["kept"]


def test_uninstalling_waits_for_an_uncommitted_record(used: Connection) -> None:
    consumer = begun(used.another())
    consumer.value("select pgq_ext.set_batch_done('c', 5)")
    removing = used.blocked(Connection.value, "select pgq.uninstall()::text")
    consumer.execute("commit")
    with refused("PQ020", "the last batch of consumer c"):
        removing.result()
    begun(used, "repeatable read")
    with refused("PQ013"):
        used.value("select pgq.uninstall()::text")


def test_it_is_removed_with_pgque(used: Connection) -> None:
    with refused("PQ020", "not read"):
        used.value("select pgque.uninstall()::text")
    used.drain()
    used.value("select pgque.uninstall()::text")
    assert used.rows(SCHEMAS) == []
