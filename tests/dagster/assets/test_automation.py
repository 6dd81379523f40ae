"""Declarative automation downstream of batches and windows, on an instance with its records."""

from datetime import timedelta

import dagster as dg
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset, pgque_window_asset
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.events import publish
from tests.support.windows import send_at_hours

HOURLY = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-01-03:00")
EAGER = dg.AutomationCondition.eager()
FRESH = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))


@pgque_asset(queue="orders", freshness_policy=FRESH)
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


@dg.asset(automation_condition=EAGER)
def report(revenue: int) -> int:
    return revenue


@pgque_window_asset(queue="orders", partitions_def=HOURLY)
def hourly(batch: SparkBatch) -> int:
    return batch.event_count


@dg.asset(
    partitions_def=HOURLY,
    automation_condition=EAGER.without(dg.AutomationCondition.in_latest_time_window()),
)
def hourly_report(hourly: int) -> int:
    return hourly


def run(
    asset: dg.AssetsDefinition,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    partition: str | None = None,
) -> None:
    assert dg.materialize(
        [asset],
        resources={
            "pgque": PgqueResource(url=client.url),
            "pyspark": SessionHolder(spark),
            "io_manager": StoringIOManager(),
        },
        partition_key=partition,
        instance=instance,
    ).success


def definitions(*assets: dg.AssetsDefinition) -> dg.Definitions:
    return dg.Definitions(assets, resources={"pgque": PgqueResource(), "pyspark": None})


def data_version(instance: dg.DagsterInstance) -> str:
    made = instance.get_latest_materialization_event(revenue.key)
    assert made is not None and made.asset_materialization is not None
    return str((made.asset_materialization.tags or {})["dagster/data_version"])


def test_each_batch_requests_an_eager_downstream_asset_once(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    defs = definitions(revenue, report)
    found = dg.evaluate_automation_conditions(defs, instance)
    requested = [found.total_requested]
    for texts in (["a"], ["b"]):
        publish(client, texts)
        run(revenue, client, spark, instance)
        for _ in range(2):
            found = dg.evaluate_automation_conditions(defs, instance, cursor=found.cursor)
            requested.append(found.total_requested)

    assert requested == [0, 1, 0, 1, 0]


def test_each_batch_has_a_data_version_of_its_own(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    versions = []
    for texts in (["a"], ["a"]):
        publish(client, texts)
        run(revenue, client, spark, instance)
        versions.append(data_version(instance))

    assert len(set(versions)) == 2
    assert all(version.startswith(f"{client.lineage()}:") for version in versions)


def test_a_window_requests_the_same_partition_of_an_eager_downstream_asset(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    defs = definitions(hourly, hourly_report)
    send_at_hours(client, [["a"], ["b"], ["c"]])
    first = dg.evaluate_automation_conditions(defs, instance)

    run(hourly, client, spark, instance, partition="2026-01-01-01:00")
    found = dg.evaluate_automation_conditions(defs, instance, cursor=first.cursor)

    assert first.total_requested == 0
    assert found.get_requested_partitions(hourly_report.key) == {"2026-01-01-01:00"}


def test_an_asset_has_the_freshness_policy_that_it_was_given() -> None:
    assert [spec.freshness_policy for spec in revenue.specs] == [FRESH]
