"""Runs with a batch of each shard die, pause or overtake each other, and each event counts once."""

import json
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals

import dagster as dg
import psycopg
import pytest
from pyspark.sql import DataFrame

from pgque_dagster import SparkBatch
from pgque_dagster.client import Client
from tests.support.sharding import POINTS, STORED, Sharded, watched
from tests.support.signals import go_on, has_ended, signalled, wait_until


class Died(Exception):
    """Takes the place of a run's death."""


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_is_completed_and_nothing_is_stored_twice(
    sharded: Sharded, point: str
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
    assert made, "no run recorded what was stored"


def test_two_runs_with_one_batch_in_common_store_it_once(sharded: Sharded) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP])
def test_a_process_that_is_killed_or_paused_stores_nothing_twice(
    sharded: Sharded, tmp_path: Path, signal: Signals, point: str
) -> None:
    sharded.send(eu=[1, 2], us=[3])
    (request,) = sharded.requests()

    place = (sharded.kind, str(sharded.folder), sharded.target)
    run = (json.dumps(sharded.urls), *place, json.dumps(request.tags), signal.name, point)
    with signalled("sharding", *run, log=tmp_path / "log") as pid:
        wait_until(lambda: not is_leased(sharded))
        # With its shards alone, as the sensor requests them.
        for shard in sharded.left():
            tags = {key: value for key, value in request.tags.items() if key.endswith(shard)}
            assert sharded.run(tags).success
        go_on(pid, SIGCONT)
        wait_until(lambda: has_ended(pid))

    assert sharded.rows() == [("eu", 1), ("eu", 2), ("us", 3)]
    assert sharded.left() == []


def is_leased(sharded: Sharded) -> bool:
    found = []
    for url in sharded.urls.values():
        with Client(url) as client:
            lease = client.lease_info("orders", "revenue")
            found.append(lease is not None and lease.is_live)
    return any(found)
