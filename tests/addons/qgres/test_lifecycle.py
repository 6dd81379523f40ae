"""Installing again, upgrades during open transactions, uninstalling, dump and restore."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL
from tests.support.addons.serial import (
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
from tests.support.queues.sql import Connection, refused
from tests.support.servers.dumps import Restore, new_cluster, restoring, use_ids


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
    """Checks that each entry that `fill` left unread is read once."""
    publish(db, "e")
    add(db, "e")
    assert (numbers(db, "fast"), numbers(db, "slow")) == ([5], [2, 3, 4, 5])
    assert remove(db, 2) + remove(db) == ["b", "c", "d", "e"]


def test_installing_again_loses_nothing_and_waits_for_no_open_transaction(db: Connection) -> None:
    fill(db)
    publisher, consumer, remover = db.another(), db.another(), db.another()
    for connection in (publisher, consumer, remover):
        connection.execute("begin")
    publish(publisher, "x")
    numbers(consumer, "slow")
    remove(remover)
    db.execute("set lock_timeout = '10s'")
    db.execute(addon_sql("qgres"))
    for connection in (publisher, consumer, remover):
        connection.execute("rollback")
    db.execute(INSTALL_SQL.read_bytes())
    db.execute(addon_sql("qgres"))
    check_filled(db)


def test_an_uninstall_is_refused_while_entries_are_unread(db: Connection) -> None:
    fill(db)
    for read in ("select qgres.consume('sp', 'slow')", "select qgres.\"Remove\"('sr')", "select 1"):
        with db.transaction(force_rollback=True):
            db.rows(read)
            for call in ("qgres.uninstall()", "pgque.uninstall()"):
                with (
                    refused("PQ020", "entries that were not read yet", "qgres.uninstall(true)"),
                    db.transaction(),
                ):
                    db.value(f"select {call}")
    assert db.value("select count(*) from qgres.queue") == 2


@pytest.mark.parametrize(
    "call", ["qgres.uninstall()", "pgque.uninstall()", "qgres.uninstall(true)"]
)
def test_an_uninstall_leaves_only_the_roles(db: Connection, call: str) -> None:
    fill(db)
    if "true" not in call:
        numbers(db, "slow")
        remove(db)
    db.value(f"select {call}::text")
    assert db.value("select to_regnamespace('qgres')") is None
    left = db.rows("select rolname from pg_roles where rolname = any(%s)", list(ROLES))
    assert len(left) == 3
    if call.startswith("qgres"):
        assert db.value("select count(*) from pgque.addon") == 0
        db.execute(addon_sql("qgres"))
        fill(db)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with new_cluster(INSTALL_SQL.read_bytes(), addon_sql("qgres")) as made:
        yield made


@pytest.fixture
def restore(server: Any, cluster: Any, database_url: str, tmp_path: Path) -> Iterator[Restore]:
    with restoring(server, database_url, cluster, tmp_path) as restore:
        yield restore


@pytest.fixture
def old_ids(db: Connection) -> Connection:
    """A database whose transaction ids are far above those of the new cluster."""
    use_ids(db)
    return db


@pytest.mark.parametrize("first", ["add", "remove"])
def test_a_restored_database_continues_where_it_stopped(
    old_ids: Connection, restore: Restore, first: str
) -> None:
    db = old_ids
    fill(db)
    make_sr(db, "own")
    with db.transaction():
        add(db, "a", "b", "c", queue="own")
        assert remove(db, 2, queue="own") == ["a", "b"]
    restored = restore()
    if first == "remove":
        assert len(remove(restored, 1)) == 1
        add(restored, "x")
        assert len(remove(restored)) == 3
        publish(restored, "e")
        assert (numbers(restored, "fast"), numbers(restored, "slow")) == ([5], [2, 3, 4, 5])
    else:
        check_filled(restored)
    assert remove(restored, queue="own") == ["c"]
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
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    steps = 0
    while db.value("select qgres.maint()"):
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


def test_a_snapshot_older_than_rotation_still_sees_what_it_needs(db: Connection) -> None:
    """A dump takes its snapshot first and its locks later."""
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    snapshot = db.another().hold_snapshot()
    numbers(db)
    remove(db)
    rotate(db)
    assert stored(snapshot, 1) + stored(snapshot, 2) == 2
