"""The metadata that an asset records for a batch: numbers, which the UI plots."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import dagster as dg
import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame

from pgque_dagster import SparkBatch
from tests.dagster.orders import Orders, Result, consuming, materialized, values
from tests.dagster.support import StoringIOManager
from tests.support.queues.events import claim

read = partial(consuming, name="read")
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))


def recorded(result: Result) -> dict[str, Any]:
    """The metadata of the asset's only materialization."""
    (made,) = materialized(result, "read")
    return values(made)


def test_a_materialization_says_what_the_batch_was(orders: Orders) -> None:
    ids = orders.publish(["a", "bcd", "ef"])
    look = claim(orders.client)
    times = [event.created_at.timestamp() for event in look.events()]
    look.release()

    @read()
    def body(batch: SparkBatch) -> int:
        batch.dead_letter(ids[:1], reason="no good")
        batch.nack([*ids[1:], ids[1]])
        return batch.events().count()

    made = recorded(orders.run(body))

    assert (made["pgque/queue"], made["pgque/consumer"]) == ("orders", "revenue")
    assert (made["pgque/events"], made["pgque/bytes"]) == (3, 6)
    assert made["pgque/tick_id"] > made["pgque/prev_tick_id"]
    assert (made["pgque/oldest_event"], made["pgque/newest_event"]) == (min(times), max(times))
    assert made["pgque/lag_seconds"] > 0
    assert (made["pgque/nacked"], made["pgque/dead_lettered"]) == (2, 1)


def test_a_step_plans_its_batch_once_and_has_its_sizes_and_times_from_the_plan(
    orders: Orders, sql: Callable[[str], None]
) -> None:
    orders.publish(["a", "bcd", "ef"])
    database = conninfo_to_dict(orders.client.url)["dbname"]
    sql(f"alter database {database} set track_functions = 'all'")

    orders.run(read()(lambda batch: batch.event_count + batch.events(["ev_id"]).count()))

    # The server counts a session's calls when the session has ended.
    end = "select pg_terminate_backend(pid, 60000) from pg_stat_activity"
    calls = "select calls from pg_stat_user_functions where funcname = 'batch_read_plan'"
    with psycopg.connect(orders.client.url, autocommit=True) as connection:
        others = "datname = current_database() and pid <> pg_backend_pid()"
        connection.execute(f"{end} where {others}".encode())
        assert connection.execute(calls).fetchall() == [(1,)]


def test_a_dataframe_is_recorded_with_its_columns(orders: Orders) -> None:
    @read()
    def body(batch: SparkBatch) -> DataFrame:
        return batch.payload("total double not null, note string")

    orders.publish([{"total": 1.5}])
    columns = recorded(orders.run(body))["dagster/column_schema"].columns

    found = [(column.name, column.type) for column in columns]
    assert found == [("total", "double"), ("note", "string")]


def test_options_of_dagsters_own_decorator_work_here_as_there(orders: Orders) -> None:
    called: list[str] = []

    @dg.success_hook
    def hook(context: dg.HookContext) -> None:
        called.append(context.op.name)

    store = StoringIOManager()

    @consuming(
        key=["sales", "read"],
        required_resource_keys={"rate"},
        hooks={hook},
        retry_policy=dg.RetryPolicy(max_retries=1),
        owners=["team:sales"],
        code_version="7",
        freshness_policy=FRESH,
        op_tags={"cpu": "1"},
    )
    def body(context: dg.AssetExecutionContext, batch: SparkBatch) -> float:
        return float(context.resources.rate)

    orders.publish(["a"])
    assert orders.run(body, manager=store, resources={"rate": 1.25}).success
    assert store.stored == [1.25]
    assert called == ["sales__read"]
    (spec,) = body.specs
    assert spec.key == dg.AssetKey(["sales", "read"])
    assert (spec.owners, spec.code_version) == (["team:sales"], "7")
    assert spec.freshness_policy == FRESH
