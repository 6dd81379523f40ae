"""From every release to this version, while a half waits for an old snapshot: nothing is lost."""

from typing import Any

import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL
from tests.support.addons import messages, serial
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import empty_database
from tests.support.servers.released import RELEASES, Release

# What the catalog says of an add-on's tables.
COLUMNS = """
select a.attrelid::regclass::text, a.attname::text,
    format_type(a.atttypid, a.atttypmod), a.attnotnull
from pg_attribute a
join pg_class c on c.oid = a.attrelid
where c.relnamespace = %s::regnamespace and a.attnum > 0 and not a.attisdropped
order by 1, 2
"""

FUNCTIONS = """
select p.oid::regprocedure::text, p.prosrc
from pg_proc p
where p.pronamespace = %s::regnamespace
order by 1
"""


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def released(request: pytest.FixtureRequest) -> Release:
    return request.param


def install(db: Connection, release: Release, addon: str) -> None:
    db.execute(release.sql())
    db.execute(release.sql(f"pgque_{addon}"))


def upgrade(db: Connection, addon: str) -> None:
    db.execute(INSTALL_SQL.read_bytes())
    db.execute(addon_sql(addon))


def catalog(db: Connection, addon: str) -> list[Any]:
    return db.rows(COLUMNS, addon) + db.rows(FUNCTIONS, addon)


@pytest.mark.parametrize("is_left", [False, True])
def test_serial_queues(server: Any, url: str, released: Release, is_left: bool) -> None:
    with connect(url) as db, connect(url) as holder:
        install(db, released, "qgres")
        sp, sr = serial.make_sp(db, consumers=("fast", "slow")), serial.make_sr(db)
        db.rows("select qgres.queue__create('parts', 'SP', 2)")
        db.value("select qgres.consumer__register('parts#1', 'c')::text")
        serial.publish(db, "a", queue="parts#1")
        serial.publish(db, "a", "b", "c")
        serial.add(db, "a", "b", "c")
        assert serial.numbers(db, "fast") == [1, 2, 3]
        assert serial.remove(db) == ["a", "b", "c"]
        if is_left:
            serial.numbers(db, "slow")
            holder.execute("begin isolation level repeatable read")
            holder.value("select 1")
            serial.rotate(db)
            assert db.value("select count(*) from qgres._queue where moved_by is not null") == 2
        serial.publish(db, "d")
        serial.add(db, "d")
        holder.execute("rollback")
        upgrade(db, "qgres")
        assert serial.publish(db, "e") == [5]
        serial.add(db, "e")
        assert serial.numbers(db, "fast") == [4, 5]
        assert serial.numbers(db, "slow") == ([4, 5] if is_left else [1, 2, 3, 4, 5])
        assert serial.remove(db) == ["d", "e"]
        serial.publish(db, "b", queue="parts#1")  # what was a partition is a queue
        assert serial.consume(db, queue="parts#1") == [(1, "a"), (2, "b")]
        for part in range(2):
            db.value("select qgres.queue__drop(%s, true)::text", f"parts#{part}")
        for _ in range(3):
            serial.rotate(db)
        assert (serial.stored(db, sp), serial.stored(db, sr)) == (0, 0)
        with empty_database(server) as fresh_url, connect(fresh_url) as fresh:
            upgrade(fresh, "qgres")
            serial.make_sp(fresh)
            serial.make_sr(fresh)
            assert catalog(db, "qgres") == catalog(fresh, "qgres")


def test_messages(server: Any, url: str, released: Release) -> None:
    with connect(url) as db, connect(url) as holder:
        install(db, released, "postgremq")
        messages.make_queue(db)
        messages.publish(db, 1, 2, 3)
        (claim,) = messages.consume(db)
        holder.execute("begin isolation level repeatable read")
        holder.value("select 1")
        messages.rotate(db)
        assert db.value("select count(*) from postgremq.rotation_part where done_by > '0'") == 1
        messages.publish(db, 4)
        holder.execute("rollback")
        upgrade(db, "postgremq")
        messages.ack(db, claim)
        messages.publish(db, 5)
        assert messages.drain(db) == [2, 3, 4, 5]
        for _ in range(3):
            messages.rotate(db)
        assert messages.statistics(db) == (0, 0, 5, 5)
        assert db.value("select count(*) from postgremq.state") == 0
        with empty_database(server) as fresh_url, connect(fresh_url) as fresh:
            upgrade(fresh, "postgremq")
            assert catalog(db, "postgremq") == catalog(fresh, "postgremq")


def test_pgq(server: Any, url: str, released: Release) -> None:
    with connect(url) as db, empty_database(server) as fresh_url, connect(fresh_url) as fresh:
        install(db, released, "pgq")
        db.value("select pgq.create_queue('q')")
        db.value("select pgq.insert_event('q', 't', 'kept')")
        db.value("select pgq.allow_extra_maint('pgque.maint_idem')")
        db.execute("update pgq.queue set queue_extra_maint = '{pgque.maint_idem}'")
        db.execute(INSTALL_SQL.read_bytes())
        with refused("PQ005", "queue_extra_maint", "set queue_extra_maint = null"):
            db.execute(addon_sql("pgq"))
        db.execute("rollback")
        db.execute("update pgq.queue set queue_extra_maint = null, queue_per_tx_limit = 1")
        db.execute(addon_sql("pgq"))
        assert db.value("select ev_data from pgque.event_1") == "kept"
        with refused("54000", "allows max 1 events"):
            db.value("select pgq.insert_event('q', 't', 'a') from generate_series(1, 2)")
        with refused("PQ005", "queue_extra_maint cannot become"):
            db.execute("update pgq.queue set queue_extra_maint = '{pgque.maint_idem}'")
        upgrade(fresh, "pgq")
        fresh.value("select pgq.create_queue('q')")
        assert catalog(db, "pgq") == catalog(fresh, "pgq")
