"""Assets over windows of time: partitions, backfills in one run, and materializing again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster import (
    DeltaBatchIOManager,
    IcebergBatchIOManager,
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    pgque_window_asset,
    queue_key,
)
from pgque_dagster.assets import outputs
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.events import claim
from tests.support.queues import connect
from tests.support.windows import send_at_hours

Run = Callable[..., dg.ExecuteInProcessResult]
HOURLY = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00")
FIRST, SECOND, THIRD = (f"2026-01-01-0{hour}:00" for hour in range(3))
OF_SEVERAL = {
    "dagster/asset_partition_range_start": FIRST,
    "dagster/asset_partition_range_end": THIRD,
}


@pgque_window_asset(queue="orders", partitions_def=HOURLY)
def hourly(batch: SparkBatch) -> DataFrame:
    """The events of each hour."""
    return batch.events(["ev_data"])


@pytest.fixture
def materialize(client: Client, spark: SparkSession, instance: dg.DagsterInstance) -> Run:
    def run(
        *assets: Any,
        partition: str | None = None,
        manager: Any = None,
        tags: dict[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            assets or [hourly],
            resources={
                "pgque": PgqueResource(url=client.url),
                "pyspark": SessionHolder(spark),
                "io_manager": manager or StoringIOManager(),
            },
            partition_key=partition,
            tags=tags,
            raise_on_error=False,
            instance=instance,
        )

    return run


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def manager(
    request: pytest.FixtureRequest, client: Client, spark: SparkSession, tmp_path: Path
) -> Any:
    session = SessionHolder(spark)
    if request.param == "parquet":
        return ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=session)
    if request.param == "delta":
        return DeltaBatchIOManager(base_dir=str(tmp_path), pyspark=session)
    return IcebergBatchIOManager(
        pgque=PgqueResource(url=client.url), warehouse=str(tmp_path), pyspark=session
    )


def stored(manager: Any, upstream: dg.AssetsDefinition = hourly) -> list[tuple[int, str]]:
    """What a downstream asset without partitions reads."""
    context = dg.build_input_context(
        asset_key=upstream.key, upstream_output=dg.build_output_context(asset_key=upstream.key)
    )
    return sorted((row.batch_id, row.ev_data) for row in manager.load_input(context).collect())


def error_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def facts(instance: dg.DagsterInstance, key: str, name: str) -> Any:
    """The metadata of the last materialization of a partition."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey("hourly"), asset_partitions=[key]), limit=1
    ).records
    made = records[0].asset_materialization
    assert made is not None
    return made.metadata[name].value


def test_a_partition_has_the_events_of_its_window(
    client: Client, materialize: Run, manager: Any
) -> None:
    send_at_hours(client, [["a", "b"], ["c"], ["d"]])

    assert materialize(partition=FIRST, manager=manager).success
    assert materialize(partition=THIRD, manager=manager).success

    assert stored(manager) == [
        (202601010000, "a"),
        (202601010000, "b"),
        (202601010200, "d"),
    ]


def test_a_partition_that_is_materialized_again_replaces_its_rows(
    client: Client, materialize: Run, manager: Any
) -> None:
    send_at_hours(client, [["a", "b"], ["c"]])
    wanted = ["a", "b"]

    @pgque_window_asset(queue="orders", partitions_def=HOURLY, name="hourly")
    def corrected(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"]).where(f.col("ev_data").isin(wanted))

    for partition in (FIRST, SECOND, FIRST):
        assert materialize(partition=partition, manager=manager).success
    wanted.remove("a")
    assert materialize(corrected, partition=FIRST, manager=manager).success

    assert stored(manager) == [(202601010000, "b"), (202601010100, "c")]


def test_a_run_of_several_partitions_stores_and_records_each(
    client: Client, materialize: Run, manager: Any, instance: dg.DagsterInstance
) -> None:
    send_at_hours(client, [["a", "b"], ["c"], []])

    result = materialize(tags=OF_SEVERAL, manager=manager)

    assert result.success
    assert stored(manager) == [
        (202601010000, "a"),
        (202601010000, "b"),
        (202601010100, "c"),
    ]
    assert instance.get_materialized_partitions(dg.AssetKey("hourly")) == {FIRST, SECOND, THIRD}
    found = [facts(instance, key, "pgque/events") for key in (FIRST, SECOND, THIRD)]
    assert found == [2, 1, 0]
    assert [facts(instance, key, "pgque/rows") for key in (FIRST, SECOND)] == [2, 1]


def test_a_downstream_asset_gets_the_windows_of_its_partition(
    client: Client, materialize: Run, manager: Any
) -> None:
    send_at_hours(client, [["a", "b"], ["c"], ["d"]])
    found: dict[str, list[str]] = {}

    @dg.asset(partitions_def=HOURLY)
    def report(context: dg.AssetExecutionContext, hourly: DataFrame) -> None:
        found[context.partition_key] = sorted(row.ev_data for row in hourly.collect())

    for partition in (FIRST, SECOND):
        assert materialize(hourly, report, partition=partition, manager=manager).success

    assert found == {FIRST: ["a", "b"], SECOND: ["c"]}


def test_a_downstream_asset_of_a_run_of_several_partitions_gets_them_all(
    client: Client, materialize: Run, tmp_path: Path, spark: SparkSession
) -> None:
    send_at_hours(client, [["a"], ["b"], ["c"]])
    found: list[str] = []
    several = dg.BackfillPolicy.single_run()

    @pgque_window_asset(queue="orders", partitions_def=HOURLY, backfill_policy=several)
    def hourly(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"])

    @dg.asset(partitions_def=HOURLY, backfill_policy=several)
    def report(hourly: DataFrame) -> None:
        found[:] = sorted(row.ev_data for row in hourly.collect())

    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(spark))
    assert materialize(hourly, report, tags=OF_SEVERAL, manager=manager).success
    assert found == ["a", "b", "c"]


def test_any_io_manager_that_keeps_partitions_apart_may_store_windows(
    client: Client, materialize: Run, tmp_path: Path
) -> None:
    @pgque_window_asset(queue="orders", partitions_def=HOURLY)
    def hourly(batch: SparkBatch) -> list[str]:
        return sorted(row.ev_data for row in batch.events(["ev_data"]).collect())

    send_at_hours(client, [["a", "b"], ["c"], ["d"]])
    manager = dg.FilesystemIOManager(base_dir=str(tmp_path))

    assert materialize(hourly, tags=OF_SEVERAL, manager=manager).success
    assert materialize(hourly, partition=SECOND, manager=manager).success

    names = sorted(path.name for path in (tmp_path / "hourly").iterdir())
    assert names == [FIRST, SECOND, THIRD]


def test_an_io_manager_that_is_not_told_the_partition_is_refused_in_a_run_of_several(
    client: Client, materialize: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_partitions(**options: Any) -> dg.OutputContext:
        """As in the oldest supported Dagster."""
        return dg.build_output_context(
            **{key: value for key, value in options.items() if key != "partition_key"}
        )

    class Older:
        def __getattr__(self, name: str) -> Any:
            return without_partitions if name == "build_output_context" else getattr(dg, name)

    monkeypatch.setattr(outputs, "_TELLS_PARTITIONS", False)
    monkeypatch.setattr(outputs, "dg", Older())
    send_at_hours(client, [["a"], ["b"], ["c"]])

    class Overwriting(StoringIOManager):
        batch_safe = False

    manager = Overwriting()
    result = materialize(tags=OF_SEVERAL, manager=manager)

    assert not result.success
    assert "cannot tell the IO manager io_manager (Overwriting)" in error_of(result)
    assert manager.stored == []


def test_nothing_is_registered_and_no_consumer_is_moved(client: Client, materialize: Run) -> None:
    send_at_hours(client, [["a"], ["b"]])
    before = client.consumers("orders")[0].last_tick_id

    assert materialize(partition=FIRST).success

    (consumer,) = client.consumers("orders")
    assert (consumer.name, consumer.last_tick_id, consumer.batch_id) == ("revenue", before, None)
    assert [event.payload for event in claim(client).events()] == ["a"]


def test_a_window_without_events_is_stored_as_an_empty_partition(
    client: Client, materialize: Run, manager: Any, instance: dg.DagsterInstance
) -> None:
    send_at_hours(client, [["a"], [], ["c"]])

    assert materialize(partition=SECOND, manager=manager).success
    assert materialize(partition=THIRD, manager=manager).success

    assert facts(instance, SECOND, "pgque/events") == 0
    assert stored(manager) == [(202601010200, "c")]


def test_a_window_that_is_not_over_is_red_and_says_what_to_do(
    client: Client, materialize: Run
) -> None:
    send_at_hours(client, [["a"]])
    manager = StoringIOManager()

    result = materialize(partition=SECOND, manager=manager)

    assert not result.success
    error = error_of(result)
    assert f"partition {SECOND}" in error
    assert "is not over" in error
    assert "Try again when the queue has a tick after the window" in error
    assert manager.stored == []


@pytest.mark.parametrize(("partition", "what"), [(FIRST, "is gone"), (SECOND, "is partly gone")])
def test_a_window_whose_ticks_are_gone_is_red_by_name(
    client: Client, materialize: Run, sql: Callable[[str], None], partition: str, what: str
) -> None:
    send_at_hours(client, [["a"], ["b"], ["c"]])
    # As after a rotation: the first tick whose events all exist is that of 01:30.
    sql("update pgque.queue set queue_first_tick = 3")
    manager = StoringIOManager()

    result = materialize(partition=partition, manager=manager)

    assert not result.success
    assert f"partition {partition}" in error_of(result)
    assert what in error_of(result)
    assert manager.stored == []
    assert materialize(partition=THIRD, manager=manager).success


def test_a_run_of_several_partitions_stores_nothing_if_one_is_gone(
    client: Client, materialize: Run, sql: Callable[[str], None]
) -> None:
    send_at_hours(client, [["a"], ["b"], ["c"]])
    sql("update pgque.queue set queue_first_tick = 2")
    manager = StoringIOManager()

    result = materialize(tags=OF_SEVERAL, manager=manager)

    assert not result.success
    assert f"partition {FIRST}" in error_of(result)
    assert manager.stored == []


def test_a_stale_run_does_not_replace_what_a_later_run_stored(
    client: Client, materialize: Run, manager: Any
) -> None:
    send_at_hours(client, [["a"]])
    inner: list[dg.ExecuteInProcessResult] = []

    @pgque_window_asset(queue="orders", partitions_def=HOURLY, name="hourly")
    def overtaken(batch: SparkBatch) -> DataFrame:
        inner.append(materialize(hourly, partition=FIRST, manager=manager))
        return batch.events(["ev_data"]).withColumn("ev_data", f.lit("stale"))

    result = materialize(overtaken, partition=FIRST, manager=manager)

    assert inner[0].success
    assert not result.success
    assert "a later run stored" in error_of(result)
    assert stored(manager) == [(202601010000, "a")]


def test_a_malformed_event_is_red_unless_it_may_be_left_out(
    client: Client, materialize: Run, instance: dg.DagsterInstance
) -> None:
    def hourly(batch: SparkBatch) -> int:
        return batch.payload("total double not null").count()

    def asset(**options: Any) -> dg.AssetsDefinition:
        return pgque_window_asset(queue="orders", partitions_def=HOURLY, **options)(hourly)

    send_at_hours(client, [['{"total": 1}', '{"total": 2}', "broken"]])
    manager = StoringIOManager()

    refused = materialize(asset(), partition=FIRST, manager=manager)

    assert not refused.success
    assert "would lack 1 event that the function sets aside" in error_of(refused)
    assert "leave_out_failed=True" in error_of(refused)
    assert manager.stored == []

    allowed = materialize(asset(leave_out_failed=True), partition=FIRST, manager=manager)
    assert allowed.success
    assert manager.stored == [2]
    assert facts(instance, FIRST, "pgque/left_out") == 1
    assert client.dead_letters("orders") == []


def test_a_table_of_postgres_is_refused(client: Client, materialize: Run) -> None:
    send_at_hours(client, [["a"]])
    manager = PostgresBatchIOManager(pgque=PgqueResource(url=client.url))
    with connect(client.url) as db:
        db.execute("create table hourly (ev_data text)")

    result = materialize(partition=FIRST, manager=manager)

    assert not result.success
    assert "cannot replace the rows of a window" in error_of(result)


def test_delta_by_key_is_refused(client: Client, materialize: Run, tmp_path: Path) -> None:
    send_at_hours(client, [["a"]])
    manager = DeltaBatchIOManager(base_dir=str(tmp_path), mode="upsert", key=["ev_data"])

    result = materialize(partition=FIRST, manager=manager)

    assert not result.success
    assert "cannot replace the rows of a window" in error_of(result)


def test_a_function_that_stores_its_results_itself_needs_no_io_manager(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    seen: list[int] = []

    @pgque_window_asset(queue="orders", partitions_def=HOURLY)
    def hourly(batch: SparkBatch) -> None:
        seen.append(batch.event_count)

    send_at_hours(client, [["a", "b"], ["c"], []])
    for options in ({"partition_key": SECOND}, {"tags": OF_SEVERAL}):
        result = dg.materialize(
            [hourly],
            resources={"pgque": PgqueResource(url=client.url), "pyspark": SessionHolder(spark)},
            instance=instance,
            **options,  # type: ignore[arg-type]
        )
        assert result.success

    assert seen == [1, 2, 1, 0]


def test_a_large_window_is_read_by_the_executors(
    client: Client, materialize: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pgque_dagster.spark import batch as batches

    monkeypatch.setattr(batches, "DRIVER_SIDE_EVENTS", 1)

    @pgque_window_asset(queue="orders", partitions_def=HOURLY)
    def hourly(batch: SparkBatch) -> list[str]:
        return sorted(row.ev_data for row in batch.events(["ev_data"]).collect())

    send_at_hours(client, [["a", "b", "c"], ["d"]])
    manager = StoringIOManager()

    assert materialize(hourly, partition=FIRST, manager=manager).success
    assert manager.stored == [["a", "b", "c"]]


def test_days_of_a_time_zone_begin_at_its_midnight(
    client: Client, materialize: Run, tmp_path: Path, spark: SparkSession
) -> None:
    daily = dg.DailyPartitionsDefinition(start_date="2025-12-31", timezone="America/New_York")

    @pgque_window_asset(queue="orders", partitions_def=daily, name="hourly")
    def of_days(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"])

    # New York's new year is at 05:00 UTC.
    send_at_hours(client, [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(spark))

    assert materialize(of_days, partition="2025-12-31", manager=manager).success

    assert [text for _, text in stored(manager, of_days)] == ["a", "b", "c", "d", "e"]
    assert {window for window, _ in stored(manager, of_days)} == {202512310500}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "TimeWindowPartitions"),
        ({"check_specs": [dg.AssetCheckSpec("c", asset="hourly")]}, "dg.asset_check"),
        ({"output_required": False}, "output_required"),
        ({"slices": 0}, "slices"),
    ],
)
def test_what_can_mean_nothing_is_refused_when_it_is_defined(
    options: dict[str, Any], words: str
) -> None:
    def hourly(batch: SparkBatch) -> DataFrame:
        return batch.events()

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        pgque_window_asset(**{"queue": "orders", "partitions_def": HOURLY, **options})(hourly)


def test_it_is_downstream_of_its_queue() -> None:
    (spec,) = hourly.specs
    assert [dep.asset_key for dep in spec.deps] == [queue_key("orders")]
