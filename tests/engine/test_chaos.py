"""Many processes at once, while sessions are ended, cancelled and paused, the server is killed and
dumps are taken: the books balance all the same, in what is restored from the dumps, too.
"""

import os
import secrets
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from pgque_dagster.embedded import EmbeddedPostgres
from tests.conftest import INSTALL_SQL, administer, new_server, server_version
from tests.support import chaos, crowd
from tests.support.debian import DebianPostgres
from tests.support.queues import PATIENCE_SECONDS, connect
from tests.support.replicas import Replica, Replicas, cut_off, replicas, wait_for

Server = EmbeddedPostgres | DebianPostgres


def crash(server: Server, stack: ExitStack) -> None:
    """The server dies without a word, and comes back."""
    if isinstance(server, DebianPostgres):
        return server.crash()
    os.kill(server.pid, signal.SIGKILL)
    version = server_version()
    stack.enter_context(EmbeddedPostgres(server.data_dir, version=version))
    return None


def install(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(INSTALL_SQL.read_bytes())


def dump(server: Server, file: Path) -> Path:
    """A dump of the database while all work. It waits for a lock, so its snapshot gets old."""
    command = [server.binary("pg_dump"), "--format=custom", f"--file={file}", server.url]
    with connect(server.url) as db, db.transaction():
        db.execute("lock table in_the_way")
        dumping = subprocess.Popen(command)
        time.sleep(0.5)  # many rotations
    assert dumping.wait(timeout=PATIENCE_SECONDS) == 0
    return file


def restored(cluster: Server, dump: Path) -> str:
    """The URL of a new database of another cluster, restored from a dump and adopted."""
    administer(cluster, f"create database {dump.stem}")
    url = cluster.database_url(dump.stem)
    restoring = [cluster.binary("pg_restore"), "--exit-on-error", f"--dbname={url}", dump]
    subprocess.run(restoring, check=True)
    with connect(url) as db:
        db.value("select pgque.adopt_restored_database()")
    return url


def run(folder: Path, cuts: int, dumps: int) -> None:
    seed = secrets.randbelow(2**31)
    random = Random(seed)
    files = []
    with new_server() as server, new_server() as cluster, ExitStack() as stack:
        url = server.url
        install(cluster.url)  # for the roles
        with connect(url) as db:
            db.execute("create table in_the_way ()")
            install(url)
            crowd.prepare_all(db)
        with crowd.workers(url, seed, crowd.FULL_CAST) as running:
            disturbed = 0
            for number in range(dumps):
                disturbed += crowd.disturb(url, random, cuts // (2 * dumps))
                files.append(dump(server, folder / f"dump_{number}"))
            crash(server, stack)
            disturbed += crowd.disturb(url, random, cuts // 2)
            codes = crowd.send_home(url, running)
        for copy in [url, *(restored(cluster, file) for file in files)]:
            crowd.drain(copy)
            with connect(copy) as db:
                sent = db.value("select count(*) from ledger")
                print(f"seed {seed}, {copy}: {sent} events, {disturbed} sessions disturbed")
                books = crowd.books(db)
            lost, doubled, invented = books["parted"]
            if copy != url:  # a page that was acked in an open batch comes again: docs/restore.md
                doubled = 0
            books["parted"] = (lost, doubled, invented)
            assert books == crowd.FULL_BALANCED
        assert codes == [0] * len(codes)


@pytest.mark.parametrize(
    ("cuts", "dumps"), [(10, 1), pytest.param(1000, 20, marks=pytest.mark.slow)]
)
def test_each_committed_event_is_processed_once(tmp_path: Path, cuts: int, dumps: int) -> None:
    run(tmp_path, cuts, dumps)


LOST_BATCHES = (50, 150)  # more than 32, by which a standby's sequence is ahead at most


def point_to(current: Path, replica: Replica) -> None:
    """Leads who connects to the socket in `current` to this server from now on."""
    arriving = current.with_name("arriving")
    arriving.symlink_to(replica.folder)
    arriving.replace(current)


def fail_over(servers: Replicas, primary: Replica, random: Random) -> Replica:
    """Loses a server, and mostly what it did last; returns the promoted standby."""
    standby = servers.standby(primary)
    if random.random() < 0.8:
        cut_off(standby, primary)
        with connect(primary.url()) as db:
            end = db.value("select last_value from pgque.batch_id_seq")
            end += random.randint(*LOST_BATCHES)
            wait_for(db, f"select last_value >= {end} from pgque.batch_id_seq")
    primary.stop("immediate")
    standby.promote()
    return standby


@pytest.fixture
def meanings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the database, where the workers keep what each batch id means."""
    monkeypatch.setenv(chaos.MEANINGS, str(tmp_path))
    return tmp_path


def run_and_fail_over(server: Any, meanings: Path, failovers: int, cuts: int) -> None:
    seed = secrets.randbelow(2**31)
    random = Random(seed)
    print(f"seed {seed}")
    with replicas(server) as servers:
        primary = servers.primary(settings="max_prepared_transactions = 20\n")
        current = primary.folder.with_name("current")
        point_to(current, primary)
        url = primary.url().replace(primary.folder.name, current.name)
        with connect(url) as db:
            crowd.prepare_all(db)
        lineages = set()
        with crowd.workers(url, seed, crowd.FULL_CAST) as running:
            for number in range(failovers + 1):
                if number > 0:
                    primary = fail_over(servers, primary, random)
                    point_to(current, primary)
                crowd.disturb(url, random, cuts)
                with connect(url) as db:  # asked last, since it begins the new life if nobody did
                    lineages.add(db.value("select pgque.incarnation()"))
            codes = crowd.send_home(url, running)
        crowd.drain(url)
        with connect(url) as db:
            sent = db.value("select count(*) from ledger")
            known = {int(file.name) for file in meanings.iterdir()}
            lost = len(known - {row[0] for row in db.execute("select batch_id from sink")})
            books = crowd.books(db)
    print(f"{sent} events, {failovers} failovers, {lost} batches lost or empty")
    assert books == crowd.FULL_BALANCED
    assert len(lineages) == failovers + 1
    assert codes == [0] * len(codes)


@pytest.mark.slow
@pytest.mark.parametrize(("failovers", "cuts"), [(1, 6), (30, 20)])
def test_each_event_that_survives_is_processed_once(
    server: Any, meanings: Path, failovers: int, cuts: int
) -> None:
    run_and_fail_over(server, meanings, failovers, cuts)
