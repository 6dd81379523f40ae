"""A dump that waits for a lock while maintenance switches the logs: it lacks nothing."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues.halves import catch_up
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers import dumps
from tests.support.servers.databases import empty_database
from tests.support.servers.standbys import wait_for

Dump = Callable[[Callable[[], None]], Connection]


@pytest.fixture
def database_url(server: Any) -> Iterator[str]:
    """A database whose application is older than the queue: pg_dump locks its tables first."""
    with empty_database(server) as url:
        with connect(url) as owner:
            owner.execute("create table app (id integer)")
            owner.execute(INSTALL_SQL.read_bytes())
        yield url


@pytest.fixture
def dump(
    server: Any, db: Connection, database_url: str, tmp_path: Path,
    background: ThreadPoolExecutor,
) -> Iterator[Dump]:  # fmt: skip
    """Dumps while an application's table is locked and something happens; restores."""
    # One event that was consumed, and one that was not.
    db.make_queue(consumers=("c", "slow"))
    db.publish("done")
    db.drain()
    db.drain(consumer="slow")
    db.publish("unread")
    db.bloat_ticks(2100)
    db.bloat_positions()

    with empty_database(server) as url, connect(url) as restored:

        def run(meanwhile: Callable[[], None]) -> Connection:
            path = tmp_path / "dump"
            with db.another().transaction() as locking:
                locking.connection.execute("alter table app add column name text")
                dumping = background.submit(dumps.dump, server, database_url, path)
                wait_for(db, "select exists (select from pg_locks where not granted)")
                meanwhile()
            dumping.result()
            dumps.restore(server, path, url)
            return restored

        yield run


def test_it_loses_no_event_to_a_maintenance_meanwhile(db: Connection, dump: Dump) -> None:
    def maintain() -> None:
        catch_up(db, "c", "slow")
        db.execute("update pgque.config set metadata_rotation_period = '0'")
        for _ in range(5):
            db.value("select pgque.maint()")
            db.bloat_positions()

    new = dump(maintain)
    assert new.value("select pgque.adopt_restored_database()") == 1
    new.tick()
    batches = [new.next_batch(consumer=name) for name in ("c", "slow")]
    assert [new.payloads(batch) for batch in batches] == [["unread"], ["unread"]]


def test_it_is_refused_when_it_waited_for_longer_than_there_is_patience(
    db: Connection, dump: Dump
) -> None:
    def maintain() -> None:
        catch_up(db, "c", "slow")
        db.value("select pgque.set_snapshot_patience('0')")
        db.compact_positions()
        db.compact_ticks()
        db.empty_halves()

    new = dump(maintain)
    with refused("PQ018", '"q"', "Restore another dump"):
        new.value("select pgque.adopt_restored_database()")
