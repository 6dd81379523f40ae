"""`build_pgque_schedule`: at fixed times, one run for each consumer, with what is there."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_schedule, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.dagster.sensing import record_run, the_request
from tests.support.queues.events import claim, publish

HOURLY = "0 * * * *"


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events(["ev_data"]).collect())


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A lasting instance, which the context of a schedule needs."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def evaluate(
    schedule: dg.ScheduleDefinition, url: str, instance: dg.DagsterInstance
) -> list[dg.RunRequest] | str:
    """The runs that the schedule asks for, or why it asks for none."""
    with dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=datetime(2026, 1, 1, tzinfo=UTC),
        resources={"pgque": PgqueResource(url=url)},
    ) as context:
        data = schedule.evaluate_tick(context)
    return list(data.run_requests or ()) or str(data.skip_message)


def test_a_run_has_the_tags_of_a_sensor_and_takes_all_that_was_there(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    schedule = build_pgque_schedule([revenue], cron_schedule=HOURLY)
    idle = evaluate(schedule, client.url, instance)
    assert idle == "orders/revenue: no batch yet, no event waits"
    for text in ("a", "b", "c"):
        publish(client, [text])

    request = the_request(evaluate(schedule, client.url, instance))
    publish(client, ["after the request"])
    manager = StoringIOManager()
    tags = dict(request.tags)
    result = materialize(
        revenue, client.url, spark, io_manager=manager, tags=tags, instance=instance
    )

    assert result.success
    assert manager.stored == [["a", "b", "c"]]
    assert request.run_key == f"{client.incarnation()}:orders:revenue:{tags['pgque/batch_id']}:1"
    assert request.asset_selection == [revenue.key]
    assert (tags["pgque/attempt"], tags["dagster/max_retries"]) == ("1", "0")
    assert [event.payload for event in claim(client).events()] == ["after the request"]


def test_a_run_in_progress_gets_no_rival_and_its_batch_is_held_after_the_last_attempt(
    client: Client, instance: dg.DagsterInstance
) -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def failing(batch: SparkBatch) -> int:
        raise ValueError("boom")

    schedule = build_pgque_schedule([failing], cron_schedule=HOURLY, max_attempts=1)
    publish(client, ["a"])
    request = the_request(evaluate(schedule, client.url, instance))
    run = record_run(instance, failing, client.url, request.tags, dg.DagsterRunStatus.STARTED)
    assert "is started" in evaluate(schedule, client.url, instance)
    claim(client).release()
    instance.report_run_failed(run)

    assert "held after 1 attempt" in evaluate(schedule, client.url, instance)


def test_an_option_out_of_range_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="a schedule's max_events is 0"):
        build_pgque_schedule([revenue], cron_schedule=HOURLY, max_events=0)
