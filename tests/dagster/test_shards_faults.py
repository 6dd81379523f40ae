"""Runs with a batch of each shard die or overtake each other, and each event counts once.

Those that are killed or paused are in `test_shards_servers.py`.
"""

import dagster as dg
import psycopg
import pytest
from pyspark.sql import DataFrame

from pgque_dagster import SparkBatch
from pgque_dagster.assets.new_batches import batch_of
from pgque_dagster.client import Client
from tests.support.dagster.sharded_project import POINTS, STORED, ShardedProject, watched


class Died(Exception):
    """Takes the place of a run's death."""


# tests/spark/sinks/test_vectors.py has attempts that die at each point, in each kind of table.
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in (POINTS[1], POINTS[4]) else pytest.mark.slow)
        for point in POINTS
    ],
)
def test_a_run_that_dies_is_completed_and_nothing_is_stored_twice(
    sharded: ShardedProject, point: str
) -> None:
    sharded.send(eu=[1, "no number"], us=["no number", 2])
    (request,) = sharded.requests()

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with watched(die):
        assert not sharded.run(request.tags).success
    expected = ["us"] if point == POINTS[-1] else ["eu", "us"]
    assert sharded.left() == expected

    if point in STORED:
        # What is stored is not computed again.
        def fail(batch: SparkBatch) -> DataFrame:
            raise AssertionError

        sharded.compute = fail
    runs = sharded.consume()

    assert runs == [[shard] for shard in expected]
    assert sharded.rows() == [("eu", 1), ("us", 2)]
    assert (sharded.dead_letters("eu"), sharded.dead_letters("us")) == (1, 1)
    made = sharded.instance.fetch_materializations(dg.AssetKey("revenue"), limit=9).records
    vectors = [batch_of(each) for each in made]
    assert vectors, "no run recorded what was stored"
    assert len(vectors) == len(set(vectors))


def test_what_a_run_that_died_had_stored_is_recorded_before_it_is_acked(
    sharded: ShardedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded.send(eu=[1])
    (request,) = sharded.requests()

    def die(reached: str) -> None:
        if reached == STORED[0]:
            raise Died

    def raise_died(*_: object, **__: object) -> object:
        raise Died

    with watched(die):
        assert not sharded.run(request.tags).success
    with monkeypatch.context() as broken:
        broken.setattr(sharded.instance, "fetch_materializations", raise_died)
        assert not sharded.run().success
    assert sharded.left() == ["eu"]

    assert sharded.consume()
    made = sharded.instance.fetch_materializations(dg.AssetKey("revenue"), limit=9).records
    assert len(list(filter(None, map(batch_of, made)))) == 1


def test_two_runs_with_one_batch_in_common_store_it_once(sharded: ShardedProject) -> None:
    """The later one claims a batch of the earlier one, which publishes before it."""
    sharded.send(eu=[1], us=[1])
    (request,) = sharded.requests()
    inner: list[dg.ExecuteInProcessResult] = []
    overtaking = [POINTS[1]]

    def overtaken(point: str) -> None:
        # As after the lease has run out.
        if point in overtaking:
            overtaking.clear()
            for url in sharded.urls.values():
                with Client(url) as client:
                    release(client)
            inner.append(sharded.run(request.tags))

    with watched(overtaken):
        outer = sharded.run(request.tags)

    assert inner[0].success
    assert not outer.success
    assert sharded.rows() == [("eu", 1), ("us", 1)]
    assert sharded.left() == []


def release(client: Client) -> None:
    lease = client.lease_info("orders", "revenue")
    assert lease is not None
    with psycopg.connect(client.url, autocommit=True) as db:
        db.execute(
            "select pgque.release_batch(%s, %s, %s)", (lease.batch_id, lease.owner, lease.epoch)
        )
