"""The consumer of one database becomes that of a shard, and no event counts twice."""

from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import pgque_asset
from pgque_dagster.client import Batch, Client
from pgque_dagster.project.keys import owner_of_step
from tests.client.consumer.support import expire_leases
from tests.dagster.orders import error_of
from tests.support.dagster.sharded_project import LEASE, POINTS, ShardedProject, shards_of, watched
from tests.support.queues.sql import connect

REFUSED = "as an asset of one database"


class Died(Exception):
    """Takes the place of a run's death."""


@dataclass
class Alone(ShardedProject):
    """The project before: the same asset, with the one database eu and a table of its own."""

    @property
    def asset(self) -> dg.AssetsDefinition:
        consuming = pgque_asset(
            queue="orders", database="eu", consumer="revenue", name="revenue", lease_ttl=LEASE
        )
        return consuming(self.compute)

    @property
    def databases(self) -> dict[str, Any]:
        return {"eu": super().databases["eu"]}

    def numbers(self) -> list[int]:
        return sorted(row["number"] for row in self.stored_rows())


@pytest.fixture
def alone(sharded: ShardedProject) -> Alone:
    given = {**vars(sharded), "folder": sharded.folder.with_name("before")}
    return Alone(**given)


def expire(sharded: ShardedProject) -> None:
    for url in sharded.urls.values():
        with connect(url) as db:
            expire_leases(db)


def die(sharded: ShardedProject, point: str, monkeypatch: pytest.MonkeyPatch, **run: Any) -> None:
    """Has a run end at a point as if it was killed, and ends its leases."""

    def reached(at: str) -> None:
        if at == point:
            raise Died

    with monkeypatch.context() as patch, watched(reached):
        patch.setattr(Batch, "release", lambda batch: None)
        assert not sharded.run(**run).success
    expire(sharded)


def test_what_a_run_of_one_database_stored_and_did_not_ack_is_not_stored_again(
    sharded: ShardedProject, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/several-databases.md says: the old definition finishes the open batch."""
    alone.send(eu=[1, 2])
    die(alone, POINTS[3], monkeypatch)
    assert alone.numbers() == [1, 2]
    sharded.send(us=[3])

    # By hand, or by the sensor however often: the other shard goes on.
    assert sharded.run().success
    assert sharded.rows() == [("us", 3)]
    assert REFUSED in error_of(sharded.run())
    for _ in range(4):
        (request,) = sharded.requests(max_attempts=2)
        assert shards_of(request) == ["eu"]
        assert REFUSED in error_of(sharded.run(request.tags))

    assert alone.run().success
    assert alone.numbers() == [1, 2]
    sharded.send(eu=[4])
    assert sharded.consume() == [["eu"]]
    assert sharded.rows() == [("eu", 4), ("us", 3)]
    assert sharded.left() == []


@pytest.mark.parametrize("point", [POINTS[3], pytest.param(POINTS[1], marks=pytest.mark.slow)])
def test_a_batch_of_a_run_that_failed_is_refused_if_the_sensor_of_one_database_requested_it(
    sharded: ShardedProject, alone: Alone, point: str
) -> None:
    alone.send(eu=[1])
    (request,) = alone.requests()

    def fail(reached: str) -> None:
        if reached == point:
            raise Died

    with watched(fail):
        assert not alone.run(request.tags).success
    with Client(alone.urls["eu"]) as client:
        lease = client.lease_info("orders", "revenue")
        assert lease is not None and lease.owner is None
    assert REFUSED in error_of(sharded.run())

    assert alone.consume()
    assert alone.numbers() == [1]
    sharded.send(eu=[2])
    sharded.consume()
    assert sharded.rows() == [("eu", 2)]


def test_a_batch_that_no_run_of_one_database_had_is_stored(
    sharded: ShardedProject, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier batches were finished; a run for this one was requested, and never began."""
    alone.send(eu=[1])
    (request,) = alone.requests()
    with watched(_raise):
        assert not alone.run(request.tags).success
    alone.consume()
    alone.send(eu=[2])
    (request,) = alone.requests()
    job = dg.Definitions([alone.asset], resources=alone.resources)
    alone.instance.create_run_for_job(
        job.resolve_implicit_global_asset_job_def(),
        tags=request.tags,
        status=dg.DagsterRunStatus.CANCELED,
    )

    # As is one whose first run over shards died before it recorded anything.
    die(sharded, POINTS[1], monkeypatch)
    die(sharded, POINTS[1], monkeypatch, tags=sharded.requests()[0].tags)
    assert sharded.consume() == [["eu"]]
    assert alone.numbers() == [1]
    assert sharded.rows() == [("eu", 2)]


def _raise(reached: str) -> None:
    raise Died


def test_a_batch_that_a_vector_has_is_acked_whoever_had_it(
    sharded: ShardedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded.send(eu=[1])
    die(sharded, POINTS[3], monkeypatch)
    with Client(sharded.urls["eu"]) as client:
        owner = owner_of_step("a1b2c3d4")
        assert client.claim("orders", "revenue", owner=owner, ttl=LEASE) is not None
    expire(sharded)

    assert sharded.run().success
    assert sharded.rows() == [("eu", 1)]
    assert sharded.left() == []
