"""Installing again, upgrades beside open transactions, uninstalling, dump and restore."""

import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, Server, administer, new_server
from tests.support.databases import owned_database
from tests.support.debian import DebianPostgres
from tests.support.queues import Connection, connect, refused, rows, value
from tests.support.serial import (
    ROLES,
    add,
    consume,
    make_sp,
    make_sr,
    numbers,
    publish,
    remove,
    rotate,
    stored,
)

Another = Callable[[], Connection]
AnyServer = EmbeddedPostgres | DebianPostgres
_numbers = count(1)


def fill(db: Connection) -> None:
    """Two queues, each with read and unread entries."""
    make_sp(db, consumers=("fast", "slow"))
    make_sr(db)
    publish(db, *"abcd")
    numbers(db, "fast")
    numbers(db, "slow", 1)
    add(db, *"abcd")
    assert remove(db, 1) == ["a"]


def check_filled(db: Connection) -> None:
    """What fill left is read once."""
    publish(db, "e")
    add(db, "e")
    assert (numbers(db, "fast"), numbers(db, "slow")) == ([5], [2, 3, 4, 5])
    assert remove(db, 2) + remove(db) == ["b", "c", "d", "e"]


def test_installing_again_loses_nothing(db: Connection) -> None:
    fill(db)
    db.execute(addon_sql("qgres"))
    db.execute(INSTALL_SQL.read_bytes())
    db.execute(addon_sql("qgres"))
    check_filled(db)


def test_installing_again_does_not_wait_for_open_transactions(
    db: Connection, another: Another
) -> None:
    fill(db)
    publisher, consumer, remover = another(), another(), another()
    for connection in (publisher, consumer, remover):
        connection.execute("begin")
    publish(publisher, "x")
    numbers(consumer, "slow")
    remove(remover)
    db.execute("set lock_timeout = '10s'")
    db.execute(addon_sql("qgres"))
    for connection in (publisher, consumer, remover):
        connection.execute("rollback")
    check_filled(db)


def test_the_owner_of_a_database_installs_it(server: Server, db: Connection) -> None:
    """Nothing needs a superuser or an extension."""
    with owned_database(server, "nocreaterole") as owned, connect(owned.owner_url) as owner:
        for file in (INSTALL_SQL.read_bytes(), addon_sql("qgres")):
            owner.execute(file)
        fill(owner)
        check_filled(owner)


@pytest.mark.parametrize(
    "leave", ["select qgres.consume('sp', 'slow')", "select qgres.\"Remove\"('sr')", "select 1"]
)
def test_unread_entries_keep_an_uninstall_from_happening(db: Connection, leave: str) -> None:
    fill(db)
    rows(db, leave)
    for call in ("qgres.uninstall()", "pgque.uninstall()"):
        with refused("PQ020", "entries that were not read yet", "qgres.uninstall(true)"):
            value(db, f"select {call}")
    assert value(db, "select count(*) from qgres.queue") == 2


@pytest.mark.parametrize("call", ["qgres.uninstall()", "pgque.uninstall()"])
def test_an_uninstall_leaves_the_roles_only(db: Connection, call: str) -> None:
    fill(db)
    numbers(db, "slow")
    remove(db)
    value(db, f"select {call}::text")
    assert value(db, "select to_regnamespace('qgres')") is None
    left = rows(db, "select rolname from pg_roles where rolname = any(%s)", list(ROLES))
    assert len(left) == 3
    if call.startswith("qgres"):
        assert value(db, "select count(*) from pgque.addon") == 0
        db.execute(addon_sql("qgres"))
        fill(db)


def test_force_uninstalls_with_unread_entries(db: Connection) -> None:
    fill(db)
    value(db, "select qgres.uninstall(true)::text")
    assert value(db, "select to_regnamespace('qgres')") is None


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[AnyServer]:
    """A cluster with the roles, where few transaction ids are used."""
    with new_server() as server:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.execute(addon_sql("qgres"))
        yield server


Restore = Callable[..., Connection]


@pytest.fixture
def restore(
    server: AnyServer, new_cluster: AnyServer, database_url: str, tmp_path: Path
) -> Iterator[Restore]:
    """Dumps the test's database and restores it into a cluster; connects to the result."""
    opened: list[tuple[AnyServer, str, Connection]] = []

    def run(into: AnyServer = new_cluster) -> Connection:
        name = f"serial_restored_{next(_numbers)}"
        administer(into, f"create database {name}")
        dump = tmp_path / f"{name}.dump"
        command = [server.binary("pg_dump"), "--format=custom", f"--file={dump}", database_url]
        subprocess.run(command, check=True)
        url = into.database_url(name)
        subprocess.run(
            [into.binary("pg_restore"), "--exit-on-error", f"--dbname={url}", dump], check=True
        )
        opened.append((into, name, connect(url)))
        return opened[-1][2]

    yield run
    for cluster, name, connection in opened:
        connection.close()
        administer(cluster, f"drop database {name} with (force)")


@pytest.fixture
def old_ids(db: Connection) -> Connection:
    """A database whose cluster is far ahead of the new one."""
    db.execute(
        "do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$"
    )
    return db


@pytest.mark.parametrize("first", ["add", "remove"])
def test_a_restored_database_goes_on_where_it_was(
    old_ids: Connection, restore: Restore, first: str
) -> None:
    fill(old_ids)
    restored = restore()
    if first == "remove":
        assert len(remove(restored, 1)) == 1
        add(restored, "x")
        assert len(remove(restored)) == 3
        publish(restored, "e")
        assert (numbers(restored, "fast"), numbers(restored, "slow")) == ([5], [2, 3, 4, 5])
    else:
        check_filled(restored)
    rotate(restored)
    rotate(restored)
    assert stored(restored, 2) == 0


def test_a_dump_may_be_taken_between_all_steps_of_rotation(
    old_ids: Connection, restore: Restore
) -> None:
    db = old_ids
    fill(db)
    numbers(db, "slow", 3)
    remove(db)
    value(db, "select pgque.set_metadata_rotation_period('0')::text")
    steps = 0
    while value(db, "select qgres.maint()"):
        steps += 1
        publish(db, "x")
        add(db, f"x{steps}")
        restored = restore()
        read = [number for number, _ in consume(restored, "slow")]
        assert read == list(range(5, 5 + steps))
        assert remove(restored) == [f"x{nr}" for nr in range(1, steps + 1)]
        rotate(restored)
        assert publish(restored, "y") == [5 + steps]
        add(restored, "y")
        assert remove(restored) == ["y"]
    assert steps >= 3


def test_own_removals_of_a_transaction_are_not_restored(
    old_ids: Connection, restore: Restore
) -> None:
    make_sr(old_ids)
    with old_ids.transaction():
        add(old_ids, "a", "b", "c")
        assert remove(old_ids, 2) == ["a", "b"]
    assert remove(restore()) == ["c"]


def test_a_snapshot_older_than_rotation_still_sees_what_it_needs(
    db: Connection, another: Another
) -> None:
    """A dump takes its snapshot first and its locks later."""
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    snapshot = another()
    snapshot.execute("begin isolation level repeatable read")
    value(snapshot, "select count(*) from qgres.queue")
    numbers(db)
    remove(db)
    rotate(db)
    assert stored(snapshot, 1) + stored(snapshot, 2) == 2
