"""Declarative automation downstream of batches and windows, on an instance with its records."""

import dagster as dg

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset
from tests.dagster.orders import Orders
from tests.support.dagster.assets import revenue
from tests.support.queues.windows import send_at_hours

HOURLY = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00", end_date="2026-01-01-03:00")
EAGER = dg.AutomationCondition.eager()


@dg.asset(automation_condition=EAGER)
def report(revenue: int) -> int:
    return revenue


@pgque_asset(queue="orders", partitions_def=HOURLY)
def hourly(batch: SparkBatch) -> int:
    return batch.event_count


@dg.asset(
    partitions_def=HOURLY,
    automation_condition=EAGER.without(dg.AutomationCondition.in_latest_time_window()),
)
def hourly_report(hourly: int) -> int:
    return hourly


def definitions(*assets: dg.AssetsDefinition) -> dg.Definitions:
    return dg.Definitions(assets, resources={"pgque": PgqueResource(), "pyspark": None})


def test_each_batch_has_a_data_version_and_requests_an_eager_downstream_asset_once(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    defs = definitions(revenue, report)
    found = dg.evaluate_automation_conditions(defs, instance)
    requested = [found.total_requested]
    versions = set()
    for _ in range(2):
        orders.publish(["a"])
        (made,) = orders.run(revenue, instance=instance).asset_materializations_for_node("revenue")
        versions.add((made.tags or {})["dagster/data_version"])
        for _ in range(2):
            found = dg.evaluate_automation_conditions(defs, instance, cursor=found.cursor)
            requested.append(found.total_requested)

    assert requested == [0, 1, 0, 1, 0]
    assert len(versions) == 2
    assert all(version.startswith(f"{orders.client.incarnation()}:") for version in versions)


def test_a_window_requests_the_same_partition_of_an_eager_downstream_asset(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    defs = definitions(hourly, hourly_report)
    send_at_hours(orders.client, [["a"], ["b"], ["c"]])
    first = dg.evaluate_automation_conditions(defs, instance)

    assert orders.run(hourly, instance=instance, partition_key="2026-01-01-01:00").success
    found = dg.evaluate_automation_conditions(defs, instance, cursor=first.cursor)

    assert first.total_requested == 0
    assert found.get_requested_partitions(hourly_report.key) == {"2026-01-01-01:00"}
