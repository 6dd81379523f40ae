"""A mistake in a schema fails the run and loses nothing; the corrected schema reads the batch."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    BatchConsumerComponent,
    PgqueResource,
    SparkBatch,
    build_pgque_sensor,
    pgque_asset,
    pgque_replay_asset,
)
from pgque_dagster.cli.app import main
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.events import publish
from tests.support.sensing import evaluate, the_request

WRONG, RIGHT = "total int", "total double"


def in_python(schema: str, **options: Any) -> dg.Definitions:
    @pgque_asset(queue="orders", consumer="revenue")
    def totals(batch: SparkBatch) -> list[float]:
        frame = batch.payload(schema, **options)
        return sorted(row.total for row in frame.collect())

    return dg.Definitions(assets=[totals])


def component(schema: str, **options: Any) -> BatchConsumerComponent:
    return BatchConsumerComponent.from_attributes_dict(
        attributes={
            "queue": "orders",
            "transform": f"{__name__}.totals_of",
            "name": "totals",
            "consumer": "revenue",
            "payload": {"schema": schema, **options},
        }
    )


def in_yaml(schema: str, **options: Any) -> dg.Definitions:
    return dg.build_defs_for_component(component(schema, **options))


def totals_of(orders: DataFrame) -> list[float]:
    return sorted(row.total for row in orders.collect())


@pytest.fixture(params=[in_python, in_yaml])
def consume(
    request: pytest.FixtureRequest, client: Client, spark: SparkSession
) -> Callable[..., tuple[dg.ExecuteInProcessResult, list[Any]]]:
    """Runs the asset on the next batch; returns the result and what was stored."""

    def run(schema: str, **options: float) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
        store = StoringIOManager()
        resources = {
            "pgque": PgqueResource(url=client.url),
            "pyspark": SessionHolder(spark),
            "io_manager": store,
        }
        definitions = dg.Definitions.merge(
            request.param(schema, **options), dg.Definitions(resources=resources)
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(raise_on_error=False), store.stored

    return run


def test_a_wrong_column_type_fails_the_run_and_the_corrected_schema_reads_the_whole_batch(
    client: Client, consume: Callable[..., tuple[dg.ExecuteInProcessResult, list[Any]]]
) -> None:
    ids = publish(client, [{"total": number + 0.5} for number in range(8)])

    failed, stored_by_failed = consume(WRONG)
    error = str(failed.failure_data_for_node("totals").error)  # type: ignore[union-attr]
    open_batch = client.next_batch("orders", "revenue")
    corrected, stored = consume(RIGHT)

    assert not failed.success
    assert stored_by_failed == []
    assert f"8 of 8 events of batch {open_batch} of orders/revenue are malformed" in error
    for event_id in ids[:3]:
        assert f"event {event_id}: total is no int (it has the fields total: DECIMAL" in error
    assert f"event {ids[3]}" not in error
    assert corrected.success
    assert stored == [[number + 0.5 for number in range(8)]]
    assert client.dead_letter_counts("orders") == []
    assert client.next_batch("orders", "revenue") is None


def test_whoever_asks_for_it_in_writing_has_all_events_set_aside(
    client: Client, consume: Callable[..., tuple[dg.ExecuteInProcessResult, list[Any]]]
) -> None:
    publish(client, [{"total": 0.5}] * 8)

    result, stored = consume(WRONG, max_malformed=1.0)

    assert result.success
    assert stored == [[]]
    assert [count.count for count in client.dead_letter_counts("orders")] == [8]


def test_a_batch_of_one_bad_event_is_released_by_dead_letters_add(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def totals(batch: SparkBatch) -> list[float]:
        return totals_of(batch.payload(RIGHT))

    def run(**tags: str) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
        store = StoringIOManager()
        resources = {
            "pgque": PgqueResource(url=client.url),
            "pyspark": SessionHolder(spark),
            "io_manager": store,
        }
        job = dg.Definitions(assets=[totals], resources=resources)
        result = job.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, tags=tags, raise_on_error=False
        )
        return result, store.stored

    sensor = build_pgque_sensor([totals], max_attempts=1)
    (poison,) = publish(client, [{"total": "x"}])
    failed, _ = run(**the_request(evaluate(sensor, client.url, instance)).tags)
    assert not failed.success
    assert "held after 1 attempt" in str(evaluate(sensor, client.url, instance))

    added = CliRunner().invoke(
        main, ["--url", client.url, "dead-letters", "add", "orders", "revenue", str(poison)]
    )
    assert added.exit_code == 0, added.output
    released, stored = run(**the_request(evaluate(sensor, client.url, instance)).tags)

    assert released.success
    assert stored == [[]], "what an earlier attempt stored for the batch is replaced"
    assert client.next_batch("orders", "revenue") is None
    assert [letter.event_id for letter in client.dead_letters("orders")] == [poison]


def test_a_run_by_hand_computes_a_batch_without_the_events_that_were_set_aside(
    client: Client, consume: Callable[..., tuple[dg.ExecuteInProcessResult, list[Any]]]
) -> None:
    (poison,) = publish(client, [{"total": "x"}])
    failed, _ = consume(RIGHT)
    client.set_events_aside("orders", "revenue", [poison], reason="by hand")

    result, stored = consume(RIGHT)

    assert (failed.success, result.success) == (False, True)
    assert stored == [[]]
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "{{ 3 }}", "a tenth"])
def test_a_share_out_of_range_is_refused_when_yaml_is_loaded(share: object) -> None:
    with pytest.raises(Exception, match="max_malformed"):
        in_yaml(RIGHT, max_malformed=share)


def test_a_share_may_be_a_template() -> None:
    assert component(RIGHT, max_malformed="{{ 0.5 }}").payload.max_malformed == 0.5


def test_a_replay_fails_as_well(client: Client, spark: SparkSession) -> None:
    publish(client, [{"total": 0.5}] * 8)
    first, last = (tick for tick in _ticks_around(client))

    @pgque_replay_asset(queue="orders")
    def totals(batch: SparkBatch) -> list[float]:
        return totals_of(batch.payload(WRONG))

    store = StoringIOManager()
    result = dg.materialize(
        [totals],
        resources={
            "pgque": PgqueResource(url=client.url),
            "pyspark": SessionHolder(spark),
            "io_manager": store,
        },
        run_config={"ops": {"totals_replay": {"config": {"from_tick": first, "to_tick": last}}}},
        raise_on_error=False,
    )
    error = str(result.failure_data_for_node("totals_replay").error)  # type: ignore[union-attr]

    assert "8 of 8 events" in error
    assert store.stored == []


def _ticks_around(client: Client) -> tuple[int, int]:
    batch = client.claim("orders", "revenue", owner="a test")
    assert batch is not None
    batch.release()
    return batch.lease.prev_tick_id, batch.lease.tick_id
