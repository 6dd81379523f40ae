"""The metadata that an asset records for a batch: numbers, which the UI plots."""

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish


def recorded(result: dg.ExecuteInProcessResult, kind: dg.DagsterEventType) -> dict[str, Any]:
    """The metadata of the asset's only event of this kind."""
    (event,) = [
        event
        for event in result.all_events
        if event.event_type == kind
        and event.asset_key is not None
        and event.asset_key.path == ["read"]
    ]
    data: Any = event.event_specific_data
    holder = (
        data.materialization
        if kind == dg.DagsterEventType.ASSET_MATERIALIZATION
        else data.asset_observation
    )
    return {key: entry.value for key, entry in holder.metadata.items()}


def test_a_materialization_says_what_the_batch_was_and_how_long_it_took(
    client: Client, spark: SparkSession
) -> None:
    ids = publish(client, ["a", "bcd", "ef"])
    times = [event.created_at for event in client_events(client)]

    @pgque_asset(queue="orders", consumer="revenue")
    def read(batch: SparkBatch) -> int:
        batch.dead_letter(ids[:1], reason="no good")
        batch.nack([*ids[1:], ids[1]])
        return batch.events().count()

    result = materialize(read, client.url, spark)
    made = recorded(result, dg.DagsterEventType.ASSET_MATERIALIZATION)
    acked = recorded(result, dg.DagsterEventType.ASSET_OBSERVATION)

    assert (made["pgque/queue"], made["pgque/consumer"]) == ("orders", "revenue")
    assert made["pgque/events"] == 3
    assert made["pgque/bytes"] == 6
    assert made["pgque/tick_id"] > made["pgque/prev_tick_id"]
    assert made["pgque/oldest_event"] == min(times).timestamp()
    assert made["pgque/newest_event"] == max(times).timestamp()
    assert made["pgque/lag_seconds"] > 0
    assert made["pgque/read_seconds"] > 0
    assert made["pgque/process_seconds"] > 0
    assert (made["pgque/nacked"], made["pgque/dead_lettered"]) == (2, 1)
    assert acked["pgque/batch_id"] == made["pgque/batch_id"]
    assert acked["pgque/store_seconds"] > 0
    assert acked["pgque/ack_seconds"] > 0
    assert acked["pgque/retries_scheduled"] == 2
    assert acked["pgque/dead_letters_written"] == 1


def test_a_step_plans_its_batch_once_and_has_its_sizes_and_times_from_the_plan(
    client: Client, spark: SparkSession, sql: Callable[[str], None]
) -> None:
    publish(client, ["a", "bcd", "ef"])
    sql(f"alter database {conninfo_to_dict(client.url)['dbname']} set track_functions = 'all'")

    @pgque_asset(queue="orders", consumer="revenue")
    def read(batch: SparkBatch) -> int:
        return batch.event_count + batch.events(["ev_id"]).count()

    materialize(read, client.url, spark)

    calls = (
        "select calls from pg_stat_user_functions where funcname = 'batch_read_plan' and calls > 0"
    )
    with psycopg.connect(client.url, autocommit=True) as connection:
        # The server counts a session's calls when the session has been idle for some time.
        for _ in range(600):
            if counted := connection.execute(calls).fetchall():
                break
            time.sleep(0.1)
    assert counted == [(1,)]


def client_events(client: Client) -> list[Any]:
    claimed = client.claim("orders", "revenue", owner="a look")
    assert claimed is not None
    events = claimed.events()
    claimed.release()
    return events


def test_a_nacked_event_whose_retries_are_used_up_counts_as_dead_letter_once_acked(
    client: Client, spark: SparkSession
) -> None:
    client.configure_queue("orders", max_retries="0")
    ids = publish(client, ["a"])

    @pgque_asset(queue="orders", consumer="revenue")
    def read(batch: SparkBatch) -> None:
        batch.nack(ids)

    result = materialize(read, client.url, spark)
    made = recorded(result, dg.DagsterEventType.ASSET_MATERIALIZATION)
    acked = recorded(result, dg.DagsterEventType.ASSET_OBSERVATION)

    assert (made["pgque/nacked"], made["pgque/dead_lettered"]) == (1, 0)
    (count,) = client.dead_letter_counts("orders")
    assert count.count == 1
    assert acked["pgque/retries_scheduled"] + acked["pgque/dead_letters_written"] == 1


def test_a_dataframe_is_recorded_with_its_columns(client: Client, spark: SparkSession) -> None:
    publish(client, [{"total": 1.5}])

    @pgque_asset(queue="orders", consumer="revenue")
    def read(batch: SparkBatch) -> DataFrame:
        return batch.payload("total double not null, note string")

    made = recorded(materialize(read, client.url, spark), dg.DagsterEventType.ASSET_MATERIALIZATION)
    columns = made["dagster/column_schema"].columns

    assert [(column.name, column.type) for column in columns] == [
        ("total", "double"),
        ("note", "string"),
    ]


def test_options_of_dagsters_own_decorator_work_here_as_there(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])
    called: list[str] = []

    @dg.success_hook
    def hook(context: dg.HookContext) -> None:
        called.append(context.op.name)

    store = StoringIOManager()

    @pgque_asset(
        queue="orders",
        consumer="revenue",
        key=["sales", "read"],
        required_resource_keys={"rate"},
        io_manager_def=store,
        hooks={hook},
        retry_policy=dg.RetryPolicy(max_retries=1),
        owners=["team:sales"],
        code_version="7",
        max_batches=2,
        op_tags={"cpu": "1"},
    )
    def read(context: dg.AssetExecutionContext, batch: SparkBatch) -> float:
        return float(context.resources.rate)

    result = materialize(read, client.url, spark, resources={"rate": 1.25})
    (spec,) = read.specs

    assert result.success
    assert store.stored == [1.25]
    assert called == ["sales__read"]
    assert spec.key == dg.AssetKey(["sales", "read"])
    assert (spec.owners, spec.code_version) == (["team:sales"], "7")
