"""An evaluation that finds nothing to do waits for a tick; its runs need no step process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg

from pgque_dagster import (
    PgqueResource,
    SparkBatch,
    build_pgque_schedule,
    build_pgque_sensor,
    pgque_asset,
)
from pgque_dagster.client import Client
from pgque_dagster.sensors.tick_wait import share_of_wait
from tests.support.dagster.assets import revenue
from tests.support.dagster.sensing import record_run
from tests.support.queues.events import claim, publish
from tests.support.runner.waiting import in_threads, wait_until

PATIENCE_SECONDS = 30
# An evaluation that waits has looked for batches.
WAITS = (
    "select count(*) from pg_stat_activity where state = 'idle'"
    " and query ~ '^COMMIT$|incarnation' and pid not in (pg_backend_pid(), %s)"
)


@pgque_asset(queue="orders", consumer="stock")
def stock(batch: SparkBatch) -> int:
    return batch.event_count


def definitions(
    url: str, sensor: dg.SensorDefinition, executor: dg.ExecutorDefinition | None = None
) -> dg.Definitions:
    resources = {"pgque": PgqueResource(url=url), "pyspark": None}
    return dg.Definitions(
        [revenue, stock], sensors=[sensor], resources=resources, executor=executor
    )


def evaluate(
    sensor: dg.SensorDefinition,
    found: dg.Definitions,
    instance: dg.DagsterInstance,
    cursor: str | None = "orders/revenue",
) -> Any:
    context = dg.build_sensor_context(
        cursor=cursor,
        instance=instance,
        definitions=found,
        resources=dict(found.resources or {}),
    )
    return sensor.evaluate_tick(context)


def wait_until_somebody_waits(client: Client) -> None:
    """Waits for a session, besides that of the client, that has looked for batches."""
    with client.transaction() as own, psycopg.connect(client.url, autocommit=True) as db:
        wait_until(lambda: db.execute(WAITS, [own.info.backend_pid]).fetchone() != (0,))


@contextmanager
def once_somebody_waits(client: Client, act: Callable[[Client], object]) -> Iterator[None]:
    def act_then() -> None:
        wait_until_somebody_waits(client)
        act(client)

    with in_threads(act_then):
        yield


def test_an_evaluation_gets_the_batch_of_a_tick_for_which_it_waits(
    client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([revenue], tick_wait=timedelta(seconds=PATIENCE_SECONDS))

    with once_somebody_waits(client, lambda client: publish(client, ["a"])):
        data = evaluate(sensor, definitions(client.url, sensor), instance)

    assert [request.asset_selection for request in data.run_requests] == [[revenue.key]]


def test_an_evaluation_ticks_by_itself_if_nobody_else_does(
    client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([revenue], tick_wait=timedelta(seconds=PATIENCE_SECONDS))
    resources = {"pgque": PgqueResource(url=client.url, ticking="sensor"), "pyspark": None}
    found = dg.Definitions([revenue, stock], sensors=[sensor], resources=resources)

    with once_somebody_waits(client, lambda client: client.send("orders", "a")):
        data = evaluate(sensor, found, instance)

    assert [request.asset_selection for request in data.run_requests] == [[revenue.key]]


def test_an_evaluation_gets_the_next_batch_once_the_open_one_is_acked(
    client: Client, instance: dg.DagsterInstance
) -> None:
    """No NOTIFY tells of the ack."""
    sensor = build_pgque_sensor(
        [revenue], max_events=1, tick_wait=timedelta(seconds=PATIENCE_SECONDS)
    )
    publish(client, ["a"])
    publish(client, ["b"])
    found = definitions(client.url, sensor)
    (first,) = evaluate(sensor, found, instance).run_requests
    record_run(instance, revenue, client.url, first.tags, dg.DagsterRunStatus.STARTED)

    with once_somebody_waits(client, lambda client: claim(client).ack()):
        (second,) = evaluate(sensor, found, instance).run_requests

    assert int(second.tags["pgque/batch_id"]) > int(first.tags["pgque/batch_id"])


def test_an_evaluation_that_waits_in_vain_says_what_is_missing(
    client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor([revenue], tick_wait=timedelta(milliseconds=10))

    data = evaluate(sensor, definitions(client.url, sensor), instance)

    assert data.skip_message == "orders/revenue: no batch yet, no event waits"


def test_a_new_sensor_whose_database_is_away_waits_next_time(instance: dg.DagsterInstance) -> None:
    sensor = build_pgque_sensor([revenue])

    data = evaluate(sensor, definitions("postgresql://127.0.0.1:1/none", sensor), instance, None)

    assert data.cursor == "orders/revenue"


def test_the_sensors_of_a_code_location_share_the_wait() -> None:
    sensors = [
        build_pgque_sensor([revenue], name="one"),
        build_pgque_sensor([stock], name="two"),
        build_pgque_sensor([revenue], name="at_once", tick_wait=timedelta()),
    ]
    found = dg.Definitions([revenue, stock], sensors=sensors, resources={"pgque": 1, "pyspark": 1})

    assert share_of_wait(timedelta(seconds=4), found.get_repository_def(), "orders/revenue") == 2
    # A sensor that is new lets the one that captures go first.
    assert share_of_wait(timedelta(seconds=4), found.get_repository_def(), None) == 0


def test_the_default_executor_executes_the_step_in_the_process_of_the_run(
    client: Client, instance: dg.DagsterInstance
) -> None:
    """One that the project names is left alone."""
    sensor = build_pgque_sensor([revenue])
    found = definitions(client.url, sensor)
    named = definitions(client.url, sensor, dg.multiprocess_executor)
    publish(client, ["a"])

    (request,) = evaluate(sensor, found, instance).run_requests
    (other,) = evaluate(sensor, named, instance).run_requests

    job = found.resolve_job_def(str(sensor.job_name))
    assert dg.validate_run_config(job, request.run_config)["execution"] == {
        "multi_or_in_process_executor": {"in_process": {"retries": {"enabled": {}}}}
    }
    assert other.run_config == {}


def test_a_schedule_uses_no_process_for_the_step_either(client: Client) -> None:
    schedule = build_pgque_schedule([revenue], cron_schedule="0 * * * *")
    found = dg.Definitions(
        [revenue],
        schedules=[schedule],
        resources={"pgque": PgqueResource(url=client.url), "pyspark": None},
    )
    publish(client, ["a"])

    with (
        dg.DagsterInstance.local_temp() as instance,
        dg.build_schedule_context(
            instance=instance,
            resources=dict(found.resources or {}),
            repository_def=found.get_repository_def(),
        ) as context,
    ):
        (request,) = schedule.evaluate_tick(context).run_requests or ()

    assert request.run_config == {"execution": {"config": {"in_process": {}}}}
