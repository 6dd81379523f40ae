"""Malformed events become dead letters, and too many of them fail the run and lose nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame

from pgque_dagster import ParquetBatchIOManager, SparkBatch, build_pgque_sensor
from pgque_dagster.cli import main
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import ParquetSink
from pgque_dagster.spark import batch as batch_module
from tests.dagster.orders import Orders, consuming, error_of, materialized, values
from tests.dagster.support import StoringIOManager
from tests.support.dagster.sensing import evaluate, the_request

SCHEMA = "total double not null"


def payloads(good: int, wrong: int) -> list[Payload]:
    return [{"total": 1.5}] * good + [{"total": "x"}] * wrong


@pytest.fixture
def on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has executors find the malformed events, as in a large batch."""
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)


def test_a_wrong_column_type_fails_the_run_and_the_corrected_schema_reads_the_whole_batch(
    orders: Orders,
) -> None:
    def reading(schema: str, **options: Any) -> Any:
        @consuming()
        def totals(batch: SparkBatch) -> list[float]:
            return sorted(row.total for row in batch.payload(schema, **options).collect())

        return totals

    sent: list[Payload] = [{"total": number + 0.5} for number in range(8)]
    ids = orders.publish(sent)
    batch_id = orders.client.next_batch("orders", "revenue")
    store = StoringIOManager()

    error = error_of(orders.run(reading("total int"), manager=store))
    assert store.stored == []
    assert f"8 of 8 events of batch {batch_id} of orders/revenue are malformed" in error
    for event_id in ids[:3]:
        told = "Expected `int | null`, got `float` - at `$.total` (it has the fields total: DECIMAL"
        assert f"event {event_id}: {told}" in error
    assert f"event {ids[3]}" not in error

    assert orders.run(reading("total double"), manager=store).success
    assert store.stored == [[number + 0.5 for number in range(8)]]
    assert orders.dead_letters() == 0
    assert orders.is_consumed()

    # Whoever asks for it in writing has all events set aside.
    orders.publish(sent)
    assert orders.run(reading("total int", max_malformed=1.0), manager=store).success
    assert store.stored[1:] == [[]]
    assert orders.dead_letters() == 8


@pytest.mark.usefixtures("on_executors")
def test_malformed_events_are_found_while_a_dataframe_is_stored(
    orders: Orders, tmp_path: Path
) -> None:
    @consuming()
    def totals(batch: SparkBatch) -> DataFrame:
        frame = batch.payload(SCHEMA)
        assert batch.claim.requested.dead_lettered == 0, "they are looked for before the write"
        return frame

    @consuming(name="totals")
    def corrected(batch: SparkBatch) -> DataFrame:
        return batch.events(["ev_data"]).selectExpr("0D as total")

    sink = ParquetSink(tmp_path / "totals")
    manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    orders.publish(payloads(20, 20))
    failed = orders.run(totals, manager=manager)

    assert "20 of 40 events of batch" in error_of(failed)
    assert list(tmp_path.glob("**/publication-*")) == []
    assert orders.dead_letters() == 0
    assert orders.run(corrected, manager=manager).success
    assert sink.read(orders.spark).count() == 40

    orders.publish(payloads(40, 3))
    (made,) = materialized(orders.run(totals, manager=manager), "totals")
    assert values(made)["pgque/dead_lettered"] == 3
    assert sink.read(orders.spark).count() == 80
    assert orders.dead_letters() == 3


def uses_none(batch: SparkBatch, own: Path) -> DataFrame:
    batch.payload(SCHEMA)
    return batch.spark.range(1)


def without_annotation(batch, own):  # type: ignore[no-untyped-def]
    batch.payload(SCHEMA).write.parquet(str(own))
    return batch.spark.range(1)


def storing_itself(batch: SparkBatch, own: Path) -> None:
    batch.payload(SCHEMA).write.parquet(str(own))


def returning(batch: SparkBatch, own: Path) -> DataFrame:
    return batch.payload(SCHEMA)


@pytest.mark.usefixtures("on_executors")
@pytest.mark.parametrize("function", [uses_none, without_annotation, storing_itself, returning])
def test_nothing_is_stored_of_a_batch_that_fails_whoever_stores_it(
    orders: Orders, tmp_path: Path, function: Callable[..., Any]
) -> None:
    def totals(batch):  # type: ignore[no-untyped-def]
        return function(batch, tmp_path / "own")

    result = function.__annotations__.get("return", Any)
    totals.__annotations__ = {} if result is Any else {"return": result}
    orders.publish(payloads(20, 20))
    store = StoringIOManager()
    parquet = ParquetBatchIOManager(base_dir=str(tmp_path))

    failed = orders.run(consuming()(totals), manager=store if function is returning else parquet)

    assert not failed.success
    assert store.stored == []
    assert list(tmp_path.glob("**/publication-*")) == []
    assert not (tmp_path / "own").exists()
    assert orders.is_free()


def test_a_batch_of_one_bad_event_is_released_by_dead_letters_add(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    @consuming()
    def totals(batch: SparkBatch) -> list[float]:
        return [row.total for row in batch.payload(SCHEMA).collect()]

    def next_run() -> dg.RunRequest:
        return the_request(evaluate(sensor, orders.client.url, instance))

    sensor = build_pgque_sensor([totals], max_attempts=1)
    store = StoringIOManager()
    (poison,) = orders.publish(payloads(0, 1))
    assert not orders.run(totals, manager=store, tags=next_run().tags, instance=instance).success
    assert "held after 1 attempt" in str(evaluate(sensor, orders.client.url, instance))

    command = ["dead-letters", "add", "orders", "revenue", str(poison)]
    added = CliRunner().invoke(main, ["--url", orders.client.url, *command])
    assert added.exit_code == 0, added.output

    assert orders.run(totals, manager=store, tags=next_run().tags, instance=instance).success
    assert store.stored == [[]], "what an earlier attempt stored for the batch is replaced"
    assert orders.is_consumed()
    assert [letter.event_id for letter in orders.client.dead_letters("orders")] == [poison]
