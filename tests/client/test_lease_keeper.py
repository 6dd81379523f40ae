"""A lease is kept while the work goes on, and its loss is noticed."""

import threading
import time
from datetime import timedelta

import pytest

from pgque_dagster.client import Batch, Client, LeaseLost
from tests.support.queues import Connection, make_queue, send, tick, value

SHORT = timedelta(milliseconds=600)
# Its renewals, a third of it apart, get through on a loaded machine, too.
KEPT = timedelta(seconds=3)
PATIENCE_SECONDS = 60


@pytest.fixture
def ttl() -> timedelta:
    return SHORT


@pytest.fixture
def batch(client: Client, db: Connection, ttl: timedelta) -> Batch:
    make_queue(db)
    send(db, "a")
    tick(db)
    claimed = client.claim("q", "c", owner="me", ttl=ttl)
    assert claimed is not None
    return claimed


def is_live(db: Connection) -> bool:
    live: bool = value(db, "select is_live from pgque.get_lease_info('q', 'c')")
    return live


@pytest.mark.parametrize("ttl", [KEPT])
def test_a_kept_lease_outlives_its_time(batch: Batch, db: Connection) -> None:
    with batch.keep_alive() as keeper:
        time.sleep(1.5 * KEPT.total_seconds())
        keeper.check()
        assert is_live(db)
    batch.ack()


def test_a_lease_that_nobody_keeps_runs_out(batch: Batch, db: Connection) -> None:
    with batch.keep_alive():
        pass
    time.sleep(1.5 * SHORT.total_seconds())
    assert not is_live(db)


def test_a_lease_taken_over_is_reported(batch: Batch, db: Connection) -> None:
    with batch.keep_alive() as keeper:
        value(db, "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 hour')")
        with pytest.raises(LeaseLost):
            check_until_lost(keeper.check)


def test_a_renewal_that_cannot_get_through_is_reported_when_time_is_over(
    batch: Batch, db: Connection
) -> None:
    with batch.keep_alive() as keeper, db.transaction():
        db.execute("lock table pgque.position_log in access exclusive mode")
        with pytest.raises(LeaseLost, match="in time"):
            check_until_lost(keeper.check)


@pytest.mark.parametrize("ttl", [KEPT])
def test_a_session_killed_between_renewals_does_not_end_the_lease(
    batch: Batch, db: Connection
) -> None:
    with batch.keep_alive() as keeper:
        deadline = time.monotonic() + 1.5 * KEPT.total_seconds()
        while time.monotonic() < deadline:
            value(
                db,
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where query like '%%renew_batch%%' and pid <> pg_backend_pid()",
            )
            time.sleep(KEPT.total_seconds() / 4)
        keeper.check()
        assert is_live(db)


def test_leaving_the_block_does_not_wait_for_an_ack_that_is_not_committed(
    batch: Batch, client: Client
) -> None:
    def work() -> None:
        with client.transaction(), batch.keep_alive():
            batch.ack()
            time.sleep(SHORT.total_seconds())  # a renewal begins, and waits for the ack

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(PATIENCE_SECONDS)
    assert not worker.is_alive()
    assert client.next_batch("q", "c") is None


def check_until_lost(check: object) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        check()  # type: ignore[operator]
        time.sleep(0.02)
