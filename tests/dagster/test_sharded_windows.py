"""Windows of time over several databases: a partition has that of each, or is not stored."""

from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from pgque_dagster import ParquetBatchIOManager, SparkBatch, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.spark import batch as batches
from tests.conftest import INSTALL_SQL
from tests.dagster.orders import error_of
from tests.support.dagster.sharded_project import ShardedProject, payloads
from tests.support.queues.events import make_queue
from tests.support.queues.sql import connect
from tests.support.queues.windows import send_at_hours
from tests.support.servers.dumps import new_cluster, use_ids
from tests.support.spark.stored_tables import iceberg_catalog

HOURLY = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00")
FIRST, SECOND = "2026-01-01-00:00", "2026-01-01-01:00"
EVERY_KIND = pytest.mark.parametrize("sharded", ["delta", "iceberg"], indirect=True)


@dataclass
class Windows(ShardedProject):
    """A project with one asset over the windows of the queue orders of several databases."""

    options: dict[str, Any] = field(default_factory=dict)
    manager: Any = None

    @property
    def asset(self) -> dg.AssetsDefinition:
        given = {"databases": list(self.urls), "partitions_def": HOURLY, **self.options}
        return pgque_asset(queue="orders", name="revenue", **given)(self.compute)

    @property
    def io_manager(self) -> Any:
        return self.manager or super().io_manager

    def send_hours(self, **hours: list[list[Any]]) -> None:
        """Publishes the numbers of the hours from midnight on, in each of the shards."""
        for shard, each in hours.items():
            texts = [[f'{{"number": {number}}}' for number in numbers] for numbers in each]
            with Client(self.urls[shard]) as client:
                send_at_hours(client, texts)

    def window(self, partition: str = FIRST) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [self.asset],
            resources=self.resources,
            instance=self.instance,
            partition_key=partition,
            raise_on_error=False,
        )

    def stored(self, partition: str = FIRST) -> dict[str, Any]:
        """Stores a window; returns its metadata."""
        done = self.window(partition)
        assert done.success
        (made,) = done.asset_materializations_for_node("revenue")
        return {key: entry.value for key, entry in made.metadata.items()}


@pytest.fixture
def windows(sharded: ShardedProject) -> Windows:
    return Windows(**vars(sharded))


def without_1(batch: SparkBatch) -> DataFrame:
    return payloads(batch).where("number <> 1")


@EVERY_KIND
def test_a_partition_has_the_window_of_each_shard_and_replaces_its_rows(windows: Windows) -> None:
    windows.send_hours(eu=[[1, 2], [5], []], us=[[1], [5, 6], []])

    made = windows.stored(FIRST)
    windows.stored(SECOND)
    assert windows.rows() == [("eu", 1), ("eu", 2), ("eu", 5), ("us", 1), ("us", 5), ("us", 6)]
    assert (made["pgque/events"], made["pgque/left_out"]) == (3, 0)
    assert made["pgque/batch_id"] == 202601010000
    assert made["pgque/shards"] == {
        "eu": {"pgque/prev_tick_id": 1, "pgque/tick_id": 2, "pgque/events": 2},
        "us": {"pgque/prev_tick_id": 1, "pgque/tick_id": 2, "pgque/events": 1},
    }

    windows.compute = without_1
    again = windows.stored(FIRST)
    assert windows.rows() == [("eu", 2), ("eu", 5), ("us", 5), ("us", 6)]
    windows.compute = payloads
    windows.stored(FIRST)
    assert windows.rows() == [("eu", 1), ("eu", 2), ("eu", 5), ("us", 1), ("us", 5), ("us", 6)]
    assert windows.left() == ["eu", "us"], "no consumer has moved"
    records = windows.instance.fetch_materializations(dg.AssetKey("revenue"), limit=9).records
    materialized = [record.asset_materialization for record in records]
    versions = {((each and each.tags) or {})["dagster/data_version"] for each in materialized}
    assert len(versions) == 4
    assert "pgque/prev_tick_id" not in again


@pytest.mark.parametrize(
    ("why", "words"),
    [("down", "connect"), ("not over", "is not over"), ("gone", "is gone")],
)
def test_a_window_that_one_shard_lacks_is_red_and_nothing_of_it_is_stored(
    windows: Windows, why: str, words: str
) -> None:
    us = [[2]] if why == "not over" else [[2], [4]]
    windows.send_hours(eu=[[1], [3]], us=us)
    if why == "gone":
        with connect(windows.urls["us"]) as db:
            db.execute("update pgque.queue set queue_first_tick = 4")
    if why == "down":
        windows.urls["us"] = "postgresql://nobody@127.0.0.1:1/nothing"

    told = error_of(windows.window(SECOND))

    assert f"partition {SECOND}: shard us: " in told
    assert words in told
    assert not windows.folder.exists()


@pytest.mark.parametrize("is_large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_left_out_is_named_and_counted_by_shard(
    windows: Windows, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        # Tasks read it, and malformed events are found while it is stored.
        monkeypatch.setattr(batches, "DRIVER_SIDE_EVENTS", 0)
    # The databases are copies, so the events of the two have the same ids.
    windows.send_hours(eu=[[1, 2]], us=[[1, '"no number"']])

    told = error_of(windows.window())
    assert "shard us: the window from" in told
    assert "leave_out_failed=True" in told
    assert not list(windows.folder.rglob("*.parquet"))

    windows.options = {"leave_out_failed": True}
    assert windows.stored()["pgque/left_out"] == 1
    assert windows.rows() == [("eu", 1), ("eu", 2), ("us", 1)]
    assert windows.dead_letters("us") == 0

    def sets_aside(batch: SparkBatch) -> DataFrame:
        events = batch.events(["ev_id", "ev_data"])
        batch.dead_letter(events.where("shard = 'eu' and ev_data like '%1%'"), reason="1")
        return payloads(batch).where("shard = 'us' or number <> 1")

    windows.compute = sets_aside
    assert windows.stored()["pgque/left_out"] == 2
    assert windows.rows() == [("eu", 2), ("us", 1)]
    windows.options = {}
    assert "shard eu: the window from" in error_of(windows.window())


@EVERY_KIND
def test_shards_are_added_replaced_and_removed(
    windows: Windows, shard_urls: dict[str, str]
) -> None:
    windows.send_hours(eu=[[1], [4]], us=[[2], [5]])
    windows.stored(FIRST)

    with Client(windows.target) as client:
        make_queue(client)
    windows.urls["asia"] = windows.target
    windows.send_hours(asia=[[3], [6]])
    windows.stored(FIRST)
    assert windows.rows() == [("asia", 3), ("eu", 1), ("us", 2)]

    # Another database in its place, as after a restore.
    windows.urls["us"] = shard_urls["asia"]
    windows.send_hours(us=[[0], [7]])
    told = error_of(windows.window(SECOND))
    assert "holds batches of shard us of incarnation" in told
    decide(windows, told.partition("Then adopt it: ")[2])
    windows.stored(SECOND)
    every = [("asia", 3), ("asia", 6), ("eu", 1), ("eu", 4), ("us", 2), ("us", 7)]
    assert windows.rows() == every

    del windows.urls["us"]
    told = error_of(windows.window(SECOND))
    assert "has windows with rows of shard us, which is not among the databases" in told
    assert windows.rows() == every
    decide(windows, told.partition("say so: ")[2])
    windows.stored(SECOND)
    assert windows.rows() == every[:-1]

    # One that comes back is known again.
    windows.urls["us"] = shard_urls["asia"]
    windows.stored(SECOND)
    assert windows.rows() == every
    windows.urls["us"] = shard_urls["us"]
    assert "holds batches of shard us of incarnation" in error_of(windows.window(SECOND))


def decide(windows: Windows, told: str) -> None:
    """Does what the end of an error says."""
    what = told.splitlines()[0].removesuffix(".")
    match windows.kind:
        case "delta":
            exec(what, {"DeltaTable": DeltaTable})
        case "iceberg":
            table = iceberg_catalog(windows.target).load_table("pgque.revenue")
            exec(what, {"table": table})


def test_the_order_of_databases_means_nothing(windows: Windows) -> None:
    with new_cluster(INSTALL_SQL.read_bytes()) as other, connect(windows.urls["eu"]) as db:
        use_ids(db)
        with Client(other.url) as client:
            make_queue(client)
        windows.urls["us"] = other.url
        windows.send_hours(eu=[[1]], us=[[2]])
        windows.stored()
        # The ids of its cluster are far behind.
        windows.urls = dict(reversed(windows.urls.items()))
        assert next(iter(windows.urls)) == "us"
        windows.compute = without_1

        windows.stored()

        assert windows.rows() == [("us", 2)]


def test_two_shards_that_are_one_database_are_refused(windows: Windows) -> None:
    windows.send_hours(eu=[[1]])
    windows.urls["us"] = windows.urls["eu"]
    assert "shard us: the resources eu and us reach the same database" in error_of(windows.window())
    assert not windows.folder.exists()


def test_a_directory_of_parquet_takes_no_windows_of_several_databases(windows: Windows) -> None:
    windows.send_hours(eu=[[1]], us=[[2]])
    windows.manager = ParquetBatchIOManager(base_dir=str(windows.folder))
    assert "accepts the batches of one database, not of several" in error_of(windows.window())
