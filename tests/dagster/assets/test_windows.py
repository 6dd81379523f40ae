"""Assets over windows of time: partitions, backfills in one run, and materializing again."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pgque_dagster import (
    DeltaBatchIOManager,
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    pgque_asset,
    queue_key,
)
from pgque_dagster.spark import batch as batches
from tests.dagster.orders import Orders, Result, error_of, texts
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.queues.sql import connect
from tests.support.queues.windows import send_at_hours

HOURLY = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-02-00:00")
FIRST, SECOND, THIRD = (f"2026-01-01-0{hour}:00" for hour in range(3))
OF_SEVERAL = {
    "dagster/asset_partition_range_start": FIRST,
    "dagster/asset_partition_range_end": THIRD,
}
SEVERAL = dg.BackfillPolicy.single_run()


@pytest.fixture
def database_url(reused_database_url: str) -> str:
    return reused_database_url


def windows(body: Callable[..., Any], **options: Any) -> dg.AssetsDefinition:
    return pgque_asset(
        **{"queue": "orders", "partitions_def": HOURLY, "name": "hourly", **options}
    )(body)


def events(batch: SparkBatch) -> DataFrame:
    return batch.events(["ev_data"])


hourly = windows(events)
listed = windows(texts)


def stored(manager: Any, upstream: dg.AssetsDefinition = hourly) -> list[tuple[int, str]]:
    """What a downstream asset without partitions reads."""
    context = dg.build_input_context(
        asset_key=upstream.key, upstream_output=dg.build_output_context(asset_key=upstream.key)
    )
    return sorted((row.batch_id, row.ev_data) for row in manager.load_input(context).collect())


def facts(instance: dg.DagsterInstance, key: str, name: str) -> Any:
    """The metadata of the last materialization of a partition."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(hourly.key, asset_partitions=[key]), limit=1
    ).records
    made = records[0].asset_materialization
    assert made is not None
    return made.metadata[name].value


def run(orders: Orders, *assets: dg.AssetsDefinition, of: str | None, **options: Any) -> Result:
    """Materializes one partition, or the first three in one run."""
    which = {"tags": OF_SEVERAL} if of is None else {"partition_key": of}
    return orders.run(*(assets or [hourly]), **which, **options)


def test_a_partition_has_the_events_of_its_window_and_replaces_its_rows(
    orders: Orders, manager: Any, instance: dg.DagsterInstance
) -> None:
    send_at_hours(orders.client, [["a", "b"], ["c"], []])
    read: dict[str, list[str]] = {}

    @dg.asset(partitions_def=HOURLY)
    def report(context: dg.AssetExecutionContext, hourly: DataFrame) -> None:
        read[context.partition_key] = sorted(row.ev_data for row in hourly.collect())

    for partition in (FIRST, SECOND):
        assert run(orders, hourly, report, of=partition, manager=manager).success
    assert read == {FIRST: ["a", "b"], SECOND: ["c"]}
    assert stored(manager) == [(202601010000, "a"), (202601010000, "b"), (202601010100, "c")]

    corrected = windows(lambda batch: events(batch).where("ev_data <> 'a'"))
    assert run(orders, corrected, of=FIRST, manager=manager).success
    assert run(orders, of=THIRD, manager=manager, instance=instance).success
    assert facts(instance, THIRD, "pgque/events") == 0
    assert stored(manager) == [(202601010000, "b"), (202601010100, "c")]


def test_a_run_of_several_partitions_is_refused_and_stores_nothing(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    send_at_hours(orders.client, [["a", "b"], ["c"], []])
    manager = StoringIOManager()

    error = error_of(run(orders, of=None, manager=manager, instance=instance))

    assert f"has 3 partitions, from {FIRST} to {THIRD}" in error
    assert "BackfillPolicy.multi_run()" in error
    assert manager.stored == []
    assert instance.get_materialized_partitions(hourly.key) == set()


def test_a_window_for_which_nothing_is_stored_is_red(orders: Orders) -> None:
    send_at_hours(orders.client, [["a"], [], ["c"]])
    manager = StoringIOManager()

    def of_events(batch: SparkBatch) -> Iterator[Any]:
        if batch.event_count:
            yield batch.event_count

    assert run(orders, windows(of_events), of=FIRST, manager=manager).success
    result = run(orders, windows(of_events), of=SECOND, manager=manager)

    assert "nothing was stored for hourly" in error_of(result)
    assert manager.stored == [1]


def test_a_stale_run_does_not_replace_what_a_later_run_stored(orders: Orders, manager: Any) -> None:
    send_at_hours(orders.client, [["a"]])
    inner: list[Result] = []

    def overtaken(batch: SparkBatch) -> DataFrame:
        inner.append(run(orders, of=FIRST, manager=manager))
        return events(batch).withColumn("ev_data", f.lit("stale"))

    result = run(orders, windows(overtaken), of=FIRST, manager=manager)

    assert inner[0].success
    assert "a later run stored" in error_of(result)
    assert stored(manager) == [(202601010000, "a")]


def test_a_downstream_run_of_several_partitions_gets_them_all(
    orders: Orders, tmp_path: Path
) -> None:
    send_at_hours(orders.client, [["a"], ["b"], ["c"]])
    found: list[str] = []

    @dg.asset(partitions_def=HOURLY, backfill_policy=SEVERAL)
    def report(hourly: DataFrame) -> None:
        found[:] = sorted(row.ev_data for row in hourly.collect())

    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(orders.spark))
    for partition in (FIRST, SECOND, THIRD):
        assert run(orders, of=partition, manager=manager).success
    assert run(orders, hourly, report, of=None, selection=[report], manager=manager).success
    assert found == ["a", "b", "c"]


def test_any_io_manager_that_keeps_partitions_apart_may_store_windows(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "DRIVER_SIDE_EVENTS", 1)  # more are read by executors
    send_at_hours(orders.client, [["a", "b"], ["c"], ["d"]])
    manager = dg.FilesystemIOManager(base_dir=str(tmp_path))

    for partition in (FIRST, SECOND, THIRD, SECOND):
        assert run(orders, listed, of=partition, manager=manager).success

    found = {path.name: pickle.loads(path.read_bytes()) for path in (tmp_path / "hourly").iterdir()}
    assert found == {FIRST: ["a", "b"], SECOND: ["c"], THIRD: ["d"]}
    (spec,) = listed.specs
    assert [dep.asset_key for dep in spec.deps] == [queue_key("orders")]


def test_an_io_manager_that_yields_stores_each_window_and_adds_its_metadata(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    class Yielding(StoringIOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> Any:
            super().handle_output(context, obj)
            yield {"mine": obj[0]}

    send_at_hours(orders.client, [["a"], ["b"], ["c"]])
    manager = Yielding()

    for partition in (FIRST, SECOND, THIRD):
        assert run(orders, listed, of=partition, manager=manager, instance=instance).success
    assert manager.stored == [["a"], ["b"], ["c"]]
    assert [facts(instance, key, "mine") for key in (FIRST, SECOND, THIRD)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("partition", "first_tick", "words"),
    [
        (THIRD, 1, ["is not over", "Try again when the queue has a tick after the window"]),
        # As after a rotation: the first tick whose events all exist is that of 01:30.
        (FIRST, 3, ["is gone"]),
        (SECOND, 3, ["is partly gone"]),
    ],
)
def test_a_window_that_cannot_be_read_is_red_and_says_why(
    orders: Orders, sql: Callable[[str], None], partition: str, first_tick: int, words: list[str]
) -> None:
    send_at_hours(orders.client, [["a"], ["b"]])
    sql(f"update pgque.queue set queue_first_tick = {first_tick}")
    manager = StoringIOManager()

    error = error_of(run(orders, of=partition, manager=manager))

    assert all(each in error for each in (f"partition {partition}", *words))
    assert manager.stored == []


def test_a_malformed_event_is_red_unless_it_may_be_left_out(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    def total(batch: SparkBatch) -> int:
        return batch.payload("total double not null").count()

    send_at_hours(orders.client, [['{"total": 1}', '{"total": 2}', "broken"]])
    manager = StoringIOManager()

    error = error_of(run(orders, windows(total), of=FIRST, manager=manager))

    assert "would lack 1 event that the function sets aside" in error
    assert "leave_out_failed=True" in error
    assert manager.stored == []
    allowed = windows(total, leave_out_failed=True)
    assert run(orders, allowed, of=FIRST, manager=manager, instance=instance).success
    assert manager.stored == [2]
    assert facts(instance, FIRST, "pgque/left_out") == 1
    assert orders.dead_letters() == 0


@pytest.mark.parametrize("kind", ["postgres", "delta by key"])
def test_an_io_manager_that_cannot_replace_the_rows_of_a_window_is_refused(
    orders: Orders, tmp_path: Path, kind: str
) -> None:
    send_at_hours(orders.client, [["a"]])
    with connect(orders.client.url) as db:
        db.execute("create table hourly (ev_data text)")
    manager = (
        PostgresBatchIOManager(pgque=PgqueResource(url=orders.client.url))
        if kind == "postgres"
        else DeltaBatchIOManager(base_dir=str(tmp_path), mode="upsert", key=["ev_data"])
    )

    result = run(orders, of=FIRST, manager=manager)

    assert "cannot replace the rows of a window" in error_of(result)


def test_a_function_that_stores_its_results_itself_needs_no_io_manager_and_moves_no_consumer(
    orders: Orders,
) -> None:
    seen: list[int] = []

    def storing(batch: SparkBatch) -> None:
        seen.append(batch.event_count)

    send_at_hours(orders.client, [["a", "b"], ["c"], []])
    unsafe = dg.InMemoryIOManager()
    assert run(orders, windows(storing), of=SECOND, manager=unsafe).success

    assert seen == [1]
    (consumer,) = orders.client.consumers("orders")
    assert (consumer.name, consumer.batch_id) == ("revenue", None)
    assert orders.left() == ["a", "b", "c"]


def test_days_of_a_time_zone_begin_at_its_midnight(orders: Orders, tmp_path: Path) -> None:
    daily = dg.DailyPartitionsDefinition(start_date="2025-12-31", timezone="America/New_York")
    of_days = windows(events, partitions_def=daily)
    # New York's new year is at 05:00 UTC.
    send_at_hours(orders.client, [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]])
    manager = ParquetBatchIOManager(base_dir=str(tmp_path), pyspark=SessionHolder(orders.spark))

    assert run(orders, of_days, of="2025-12-31", manager=manager).success

    assert stored(manager, of_days) == [(202512310500, text) for text in "abcde"]


def test_the_result_of_a_check_of_a_window_is_recorded(orders: Orders) -> None:
    def checked(batch: SparkBatch) -> Iterator[Any]:
        yield batch.event_count
        yield dg.AssetCheckResult(passed=batch.event_count < 2)

    send_at_hours(orders.client, [["a", "b"], ["c"], []])
    spec = dg.AssetCheckSpec("few", asset="hourly", blocking=True)
    asset, manager = windows(checked, check_specs=[spec]), StoringIOManager()

    assert run(orders, asset, of=SECOND, manager=manager).success
    assert not run(orders, asset, of=FIRST, manager=manager).success
    assert manager.stored == [1, 2]
