"""A backfill of windows over two databases, in a live Dagster."""

import tempfile
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pgque_dagster import installer
from pgque_dagster.client import Client
from tests.live.test_window_backfills import finished_backfill, payload
from tests.support.live import shard_project
from tests.support.live.instance import Live, running
from tests.support.live.partitions import partition_statuses, step_failure
from tests.support.live.project import HOURLY, HOURS
from tests.support.queues.events import make_queue
from tests.support.queues.sql import connect
from tests.support.queues.windows import send_at_hours, tick_at

STORED, LACKING = ["2026-01-01-00:00", "2026-01-01-01:00"], "2026-01-01-02:00"


@pytest.mark.slow
def test_a_backfill_stores_each_window_of_all_shards_and_is_red_where_one_lacks_it() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), module=shard_project.__name__) as live,
    ):
        send(live, eu=["ab", "c", "d"], us=["e", ""])

        status, runs = finished_backfill(live, HOURLY, [*STORED, LACKING])

        assert status == "COMPLETED_FAILED"
        red = [run for run in runs if run.status == "FAILURE"]  # with Dagster's own retries
        assert {run.tags["dagster/partition"] for run in red} == {LACKING}
        assert f"partition {LACKING}: shard us: " in step_failure(live.dagster, red[0].id)
        assert partition_statuses(live.dagster, HOURLY) == [
            (*STORED, "MATERIALIZED"),
            (LACKING, LACKING, "FAILED"),
        ]
        assert rows(live) == [
            *((202601010000, "eu", "a"), (202601010000, "eu", "b"), (202601010000, "us", "e")),
            (202601010100, "eu", "c"),
        ]

        # Again, with the hour that the shard has by now.
        with Client(shard_project.shard_urls(live.url)["us"]) as client:
            client.send_batch(HOURS, [payload("f")])
            for time in ("02:45", "03:30"):
                tick_at(client, time, HOURS)
        status, _ = finished_backfill(live, HOURLY, [STORED[0], LACKING])
        assert status == "COMPLETED_SUCCESS"
        assert rows(live)[2:] == [
            (202601010000, "us", "e"),
            (202601010100, "eu", "c"),
            *((202601010200, "eu", "d"), (202601010200, "us", "f")),
        ]


def send(live: Live, **hours: list[str]) -> None:
    """Makes the shards, and sends an event for each letter of the hours from midnight on."""
    with connect(live.url) as db:
        db.execute("create database us")
    for shard, url in shard_project.shard_urls(live.url).items():
        if shard != "eu":
            installer.install(url)
        with Client(url) as client:
            make_queue(client, HOURS, "a consumer")
            send_at_hours(client, [[payload(x) for x in each] for each in hours[shard]], HOURS)


def rows(live: Live) -> list[tuple[int, str, str]]:
    stored = DeltaTable(live.output / HOURLY).to_pyarrow_table().to_pylist()
    return sorted((row["batch_id"], row["shard"], row["event"]) for row in stored)
