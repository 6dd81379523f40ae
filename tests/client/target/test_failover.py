"""The queue's database goes on elsewhere: nothing is applied twice, and nothing is lost unseen."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pgque_dagster.client import Client, Consumer, TargetOutOfStep, TicksUnavailable
from tests.client.consumer.support import DONE, Queue
from tests.client.target.conftest import Target
from tests.support.queues.sql import connect
from tests.support.servers.databases import empty_database
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import cut_off, replicas


def fail(*args: object) -> None:
    raise OSError("the ack is not sent")


def targets(stack: ExitStack, queues: Postgres, urls: list[str]) -> list[Target]:
    """The databases 1, 2 and 3 of a server, each with a target of its own."""
    made = []
    for number, url in enumerate(urls, 1):
        client = stack.enter_context(Client(queues.database_url(f"d{number}")))
        q = Queue(client, stack.enter_context(connect(client.url)))
        made.append(Target(url, stack.enter_context(connect(url)), q))
    return made


@pytest.fixture(scope="module")
def promoted(server: Any) -> Iterator[list[Target]]:
    """Three queues on a standby that was promoted, as their targets see them."""
    with replicas() as servers, ExitStack() as stack:
        urls = [stack.enter_context(empty_database(server)) for _ in range(3)]
        for url in urls:
            with connect(url) as target:
                target.execute(DONE)
        primary = servers.primary()
        with connect(primary.database_url("template1")) as db:
            for number in (1, 2, 3):
                db.execute(f"create database d{number} template postgres".encode())
        with ExitStack() as before, pytest.MonkeyPatch.context() as patched:
            complete, lossy, empty = targets(before, primary, urls)
            for target in (complete, lossy, empty):
                target.q.db.make_queue()
            for target in (complete, lossy):
                target.q.send("a")
                target.apply()
            complete.q.send("b")
            # Applied, but not acked: the batch is still open after the switchover.
            patched.setattr(Consumer, "_finish", fail)
            assert isinstance(complete.error(), OSError)
            patched.undo()
            standby = servers.standby(primary)
            cut_off(standby, primary)
            for target in (lossy, empty):
                target.q.send("lost")
                target.apply()
        primary.stop()
        standby.promote()
        yield targets(stack, standby, urls)


def test_a_switchover_that_loses_nothing_goes_on(promoted: list[Target]) -> None:
    target, _, _ = promoted
    for event in ("c", "d"):
        target.q.send(event)
        target.apply()
    assert target.done() == ["a", "b", "c", "d"]


def test_after_a_failover_that_lost_transactions_somebody_decides(promoted: list[Target]) -> None:
    _, target, _ = promoted
    # A tick of the number that the target has applied, with other events.
    target.q.send("b")
    error = target.error()
    assert isinstance(error, TargetOutOfStep)
    assert "failed over" in str(error)
    with pytest.raises(TicksUnavailable):
        target.consumer().rewind()
    assert target.done() == ["a", "lost"]
    target.consumer().reset()
    target.apply()
    assert target.done() == ["a", "lost", "b"]


def test_a_lost_tick_is_not_taken_for_another_one_of_its_number(promoted: list[Target]) -> None:
    _, _, target = promoted
    target.q.send("a")
    target.q.client.seek("q", "c", "latest", skip=True)
    target.q.send("b")
    assert isinstance(target.error(), TargetOutOfStep)
    lease = target.q.client.lease_info("q", "c")
    assert lease
    ended = target.db.value("select tick_id from pgque_sink_ledger")
    assert target.q.client.batch_info(lease.batch_id).prev_tick_id == ended
    with pytest.raises(TicksUnavailable):
        target.consumer().rewind()
    assert target.done() == ["lost"]
