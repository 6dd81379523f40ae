"""A driver killed in the middle of a micro-batch: after a restart every event is stored once."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from tests.programs.signals import signalled
from tests.programs.streaming import store
from tests.support.queues.events import make_queue, tick
from tests.support.spark.streams import Stream, needs_limits


def send(client: Client, count: int) -> list[int]:
    ids = client.send_batch("orders", ["x"] * count)
    tick(client)
    return ids


def stored(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(f"{folder}/target/*").select("ev_id").collect()
    return sorted(row.ev_id for row in rows)


def drain(spark: SparkSession, url: str, folder: Path, max_events: str = "100") -> None:
    stream = Stream(spark, url, folder / "checkpoint", max_events=max_events)
    stream.drain(partial(store, str(folder / "target"), None))


@pytest.mark.slow
@needs_limits
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_killed_around_storing_leaves_each_event_once(
    database_url: str, spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        ids = send(client, 50) + send(client, 40) + send(client, 60)
        places = (str(tmp_path / "checkpoint"), str(tmp_path / "target"))
        with signalled("streaming", database_url, *places, moment, log=tmp_path / "log"):
            ids += send(client, 30)

        drain(spark, database_url, tmp_path)

    assert stored(spark, tmp_path) == ids
