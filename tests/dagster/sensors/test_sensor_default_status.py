"""Loading a code location starts nothing: its sensors are stopped until they are switched on."""

import math

import dagster as dg

from pgque_dagster import (
    BatchConsumerComponent,
    PgqueComponent,
    QueueComponent,
    build_pgque_alerts,
    build_pgque_observation_sensor,
    build_pgque_sensor,
    build_pgque_ticker_sensor,
)


def notify(alert: object) -> None:
    """Reaches nobody."""


def test_no_sensor_runs_before_somebody_switches_it_on() -> None:
    components = [
        QueueComponent(queue="orders"),
        BatchConsumerComponent(queue="orders", transform=math.sqrt),
        PgqueComponent(ticking="sensor"),
    ]
    sensors = [
        build_pgque_sensor([]),
        build_pgque_ticker_sensor(),
        build_pgque_observation_sensor(["orders"]),
        build_pgque_alerts(["orders"], notify=notify),
        *(
            sensor
            for component in components
            for sensor in dg.build_defs_for_component(component).sensors or []
        ),
    ]

    assert len(sensors) == 7
    assert {each.default_status for each in sensors} == {dg.DefaultSensorStatus.STOPPED}
