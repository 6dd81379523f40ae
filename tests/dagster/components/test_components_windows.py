"""Windows of time and schedules in YAML."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    BatchConsumerComponent,
    PgqueResource,
    QueueComponent,
    WindowComponent,
)
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder
from tests.support.windows import send_at_hours

HERE = "tests.dagster.components.test_components_windows"
HOURLY = "{{ dg.HourlyPartitionsDefinition(start_date='2026-01-01-00:00') }}"


def payloads(events: DataFrame) -> DataFrame:
    """Returns the payloads."""
    return events.select("ev_data")


async def hidden(events: DataFrame) -> DataFrame:
    return events


def window(**attributes: Any) -> WindowComponent:
    return WindowComponent.from_attributes_dict(
        attributes={
            "queue": "orders",
            "transform": f"{HERE}.payloads",
            "partitions_def": HOURLY,
            **attributes,
        }
    )


def consumer(**attributes: Any) -> BatchConsumerComponent:
    return BatchConsumerComponent.from_attributes_dict(
        attributes={"queue": "orders", "transform": f"{HERE}.payloads", **attributes}
    )


def asset_of(component: dg.Component) -> dg.AssetsDefinition:
    (asset,) = dg.build_defs_for_component(component).assets or ()
    assert isinstance(asset, dg.AssetsDefinition)
    return asset


def test_a_window_is_stored_by_the_sink_as_its_partition(
    client: Client, spark: SparkSession, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    component = window(name="hourly", sink={"base_dir": str(tmp_path)}, group_name="sales")
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(
            resources={"pgque": PgqueResource(url=client.url), "pyspark": SessionHolder(spark)}
        ),
    )
    send_at_hours(client, [["a"], ["b"]])

    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(partition_key="2026-01-01-01:00", instance=instance)

    assert result.success
    rows = spark.read.parquet(str(tmp_path / "hourly")).collect()
    assert [(row.ev_data, row.batch_id) for row in rows] == [("b", 202601010100)]
    assert definitions.resolve_assets_def("hourly").get_asset_spec().group_name == "sales"


@pytest.mark.parametrize(
    ("written", "partitions"), [("single_run", None), (24, 24), (None, "no policy")]
)
def test_the_backfill_policy_is_a_number_or_a_single_run(
    written: Any, partitions: int | str | None
) -> None:
    policy = asset_of(window(backfill_policy=written)).backfill_policy
    found = "no policy" if policy is None else policy.max_partitions_per_run
    assert found == partitions


def test_a_step_is_repeated_as_the_retry_policy_says() -> None:
    asset = asset_of(window(retry_policy={"max_retries": 3, "delay": "1m"}))
    assert asset.op.retry_policy == dg.RetryPolicy(max_retries=3, delay=60)


def test_what_is_no_window_is_refused() -> None:
    with pytest.raises(Exception, match="write a template, such as"):
        window(partitions_def="hourly")


def test_an_async_transform_is_refused() -> None:
    with pytest.raises(Exception, match="the transform is async"):
        consumer(transform=f"{HERE}.hidden")


def test_a_schedule_takes_the_place_of_the_sensor_in_one_line() -> None:
    definitions = dg.build_defs_for_component(consumer(schedule={"cron_schedule": "0 * * * *"}))

    (schedule,) = definitions.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.name, schedule.cron_schedule) == ("payloads_schedule", "0 * * * *")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    assert not definitions.sensors


def test_a_schedule_beside_a_sensor_is_refused() -> None:
    with pytest.raises(Exception, match="`schedule` takes the place of `sensor`"):
        consumer(schedule={"cron_schedule": "0 * * * *"}, sensor={"max_age": "5s"})


@pytest.mark.parametrize("status", ["STOPPED", "RUNNING"])
def test_the_schedule_of_a_queues_checks_is_stopped_unless_it_says_running(status: str) -> None:
    options = {} if status == "STOPPED" else {"default_status": status}
    component = QueueComponent.from_attributes_dict(
        attributes={"queue": "orders", "check_schedule": options}
    )

    (schedule,) = dg.build_defs_for_component(component).schedules or ()

    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.default_status.value == status
    assert schedule.cron_schedule == "*/5 * * * *"
