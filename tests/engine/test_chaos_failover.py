"""Many processes at once, while the server is lost again and again and a standby continues without
the last transactions: the books of the promoted server balance, and no batch id means two things.
"""

import secrets
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support import chaos, crowd
from tests.support.queues import connect, value
from tests.support.replicas import Replica, Replicas, cut_off, replicas, wait_for

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
            end = value(db, "select last_value from pgque.batch_id_seq")
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


def run(server: Any, meanings: Path, failovers: int, cuts: int) -> None:
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
                    lineages.add(value(db, "select pgque.lineage()"))
            codes = crowd.send_home(url, running)
        crowd.drain(url)
        with connect(url) as db:
            sent = value(db, "select count(*) from ledger")
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
    run(server, meanings, failovers, cuts)
