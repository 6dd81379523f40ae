"""The queue's database goes on elsewhere: nothing is applied twice, and nothing is lost unseen."""

from collections.abc import Iterator
from typing import Any

import pytest

from pgque_dagster.client import Client, TargetOutOfStep, TicksUnavailable
from pgque_dagster.client.consumer.sources import BatchWork
from tests.client.consumer.support import is_acked, run_until, run_until_error, send
from tests.support.moving_driver import make
from tests.support.queues import Connection, connect, make_queue, rows, value
from tests.support.replicas import Replicas, cut_off, replicas

DONE = "select id from done order by nr"


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


def fail(*args: object) -> None:
    raise OSError("the ack is not sent")


def test_a_switchover_that_loses_nothing_goes_on(
    servers: Replicas, target_url: str, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = servers.primary()
    with Client(primary.url()) as client, connect(primary.url()) as db:
        make_queue(db)
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        send(client, db, "b")
        # Applied, but not acked: the batch is still open after the switchover.
        with monkeypatch.context() as patched:
            patched.setattr(BatchWork, "finish", fail)
            assert isinstance(run_until_error(make("batch", client.url, target_url)), OSError)
        standby = servers.standby(primary)
        cut_off(standby, primary)
    standby.promote()
    with Client(standby.url()) as client, connect(standby.url()) as db:
        send(client, db, "c")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        send(client, db, "d")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
    assert rows(target, DONE) == [("a",), ("b",), ("c",), ("d",)]


def test_after_a_failover_that_lost_transactions_somebody_decides(
    servers: Replicas, target_url: str, target: Connection
) -> None:
    primary = servers.primary()
    with Client(primary.url()) as client, connect(primary.url()) as db:
        make_queue(db)
        send(client, db, "a")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
        standby = servers.standby(primary)
        cut_off(standby, primary)
        send(client, db, "lost")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
    standby.promote()
    with Client(standby.url()) as client, connect(standby.url()) as db:
        # A tick of the number that the target has applied, with other events.
        send(client, db, "b")
        consumer = make("batch", client.url, target_url)
        error = run_until_error(consumer)
        assert isinstance(error, TargetOutOfStep)
        assert "failed over" in str(error)
        with pytest.raises(TicksUnavailable):
            consumer.rewind()
        assert rows(target, DONE) == [("a",), ("lost",)]
        consumer.reset()
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
    assert rows(target, DONE) == [("a",), ("lost",), ("b",)]


def test_a_lost_tick_is_not_taken_for_another_one_of_its_number(
    servers: Replicas, target_url: str, target: Connection
) -> None:
    primary = servers.primary()
    with Client(primary.url()) as client, connect(primary.url()) as db:
        make_queue(db)
        standby = servers.standby(primary)
        cut_off(standby, primary)
        send(client, db, "lost")
        run_until(make("batch", client.url, target_url), lambda: is_acked(client))
    standby.promote()
    with Client(standby.url()) as client, connect(standby.url()) as db:
        send(client, db, "a")
        client.seek("q", "c", "latest", skip=True)
        send(client, db, "b")
        assert isinstance(run_until_error(make("batch", client.url, target_url)), TargetOutOfStep)
        lease = client.lease_info("q", "c")
        assert lease
        ended = value(target, "select tick_id from pgque_completed_batch")
        assert client.batch_info(lease.batch_id).prev_tick_id == ended
        with pytest.raises(TicksUnavailable):
            make("batch", client.url, target_url).rewind()
    assert rows(target, DONE) == [("lost",)]
