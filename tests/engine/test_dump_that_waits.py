"""A dump that waits for a lock while maintenance switches the logs: it lacks nothing."""

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import INSTALL_SQL, administer
from tests.support.databases import empty_database
from tests.support.halves import catch_up
from tests.support.queues import (
    PATIENCE_SECONDS,
    Connection,
    bloat_positions,
    bloat_ticks,
    compact_positions,
    compact_ticks,
    connect,
    drain,
    empty_halves,
    make_queue,
    next_batch,
    payloads,
    refused,
    send,
    tick,
    value,
)

Another = Callable[[], Connection]
_numbers = count(1)


class TestADumpThatWaitsForALock:
    @pytest.fixture
    def database_url(self, server: Any) -> Iterator[str]:
        """A database whose application is older than the queue: pg_dump locks its tables first."""
        with empty_database(server) as url:
            with connect(url) as owner:
                owner.execute("create table app (id integer)")
                owner.execute(INSTALL_SQL.read_bytes())
            yield url

    @pytest.fixture
    def dump(
        self,
        server: Any,
        db: Connection,
        another: Another,
        database_url: str,
        tmp_path: Path,
        background: ThreadPoolExecutor,
    ) -> Iterator[Callable[..., Connection]]:
        """Dumps while an application's table is locked and something happens; restores."""
        names = []

        def run(meanwhile: Callable[[], None]) -> Connection:
            names.append(f"overlapped_{next(_numbers)}")
            locker = another()
            locker.execute("begin")
            locker.execute("alter table app add column name text")
            path = tmp_path / f"{names[-1]}.dump"
            command = [server.binary("pg_dump"), "--format=custom", f"--file={path}", database_url]
            dumping = background.submit(subprocess.run, command, check=True)
            waiting = "select exists (select from pg_locks where not granted)"
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not value(db, waiting):
                assert time.monotonic() < deadline, "pg_dump waits for no lock"
                value(db, "select pg_sleep(0.01)::text")
            meanwhile()
            locker.execute("commit")
            dumping.result()
            administer(server, f"create database {names[-1]}")
            url = server.database_url(names[-1])
            subprocess.run(
                [server.binary("pg_restore"), "--exit-on-error", f"--dbname={url}", path],
                check=True,
            )
            return connect(url)

        yield run
        for name in names:
            administer(server, f"drop database {name} with (force)")

    def filled(self, db: Connection) -> None:
        """Has one event that was consumed, and one that was not."""
        make_queue(db, consumers=("c", "slow"))
        send(db, "done")
        tick(db)
        drain(db)
        drain(db, consumer="slow")
        send(db, "unread")
        tick(db)
        bloat_ticks(db, 2100)
        bloat_positions(db)

    def test_loses_no_event_to_a_maintenance_meanwhile(
        self, db: Connection, dump: Callable[..., Connection]
    ) -> None:
        self.filled(db)

        def maintain() -> None:
            catch_up(db, "c", "slow")
            value(db, "select pgque.set_metadata_rotation_period('0')")
            for _ in range(5):
                value(db, "select pgque.maint()")
                bloat_positions(db)

        with dump(maintain) as new:
            assert value(new, "select pgque.adopt_restored_database()") == 1
            tick(new)
            batches = [next_batch(new, consumer=name) for name in ("c", "slow")]
            assert [payloads(new, batch) for batch in batches] == [["unread"], ["unread"]]

    def test_is_refused_when_it_waited_for_longer_than_there_is_patience(
        self, db: Connection, dump: Callable[..., Connection]
    ) -> None:
        self.filled(db)

        def maintain() -> None:
            catch_up(db, "c", "slow")
            value(db, "select pgque.set_snapshot_patience('0')")
            compact_positions(db)
            compact_ticks(db)
            empty_halves(db)

        with dump(maintain) as new, refused("PQ018", '"q"', "Restore another dump"):
            value(new, "select pgque.adopt_restored_database()")
