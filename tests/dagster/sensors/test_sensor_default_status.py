"""Loading a code location consumes nothing: only the sensor that alerts runs from the start."""

import math

import dagster as dg

from pgque_dagster import (
    BatchConsumerComponent,
    PgqueComponent,
    QueueComponent,
    build_pgque_alerts,
    build_pgque_observation_sensor,
    build_pgque_schedule,
    build_pgque_sensor,
    build_pgque_ticker_sensor,
)
from tests.support.dagster.assets import revenue


def notify(alert: object) -> None:
    """Reaches nobody."""


def test_no_sensor_that_consumes_runs_before_somebody_switches_it_on() -> None:
    components = [
        QueueComponent(queue="orders"),
        BatchConsumerComponent(queue="orders", transform=math.sqrt),
        PgqueComponent(ticking="sensor"),
    ]
    definitions = [dg.build_defs_for_component(component) for component in components]
    sensors = [
        build_pgque_sensor([]),
        build_pgque_ticker_sensor(),
        build_pgque_observation_sensor(["orders"]),
        *(sensor for each in definitions for sensor in each.sensors or []),
    ]
    schedules = [
        build_pgque_schedule([revenue], cron_schedule="0 * * * *"),
        *(schedule for each in definitions for schedule in each.schedules or []),
    ]

    assert len(sensors) == 6
    assert {each.default_status for each in sensors} == {dg.DefaultSensorStatus.STOPPED}
    assert len(schedules) == 2
    assert {
        each.default_status for each in schedules if isinstance(each, dg.ScheduleDefinition)
    } == {dg.DefaultScheduleStatus.STOPPED}
    switched_on = build_pgque_schedule(
        [revenue], cron_schedule="0 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING
    )
    assert switched_on.default_status == dg.DefaultScheduleStatus.RUNNING


def test_alerts_ring_without_being_switched_on() -> None:
    component = PgqueComponent(queues=["orders"], alerts={"notify": notify})
    (in_yaml,) = dg.build_defs_for_component(component).sensors or []
    built = build_pgque_alerts(["orders"], notify=notify)

    for sensor in (in_yaml, built):
        assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
