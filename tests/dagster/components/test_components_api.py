"""Components take what the Python API takes, under the same names and with the same defaults."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import (
    BatchConsumerComponent,
    ParquetBatchIOManager,
    PgqueComponent,
    PgqueResource,
    QueueComponent,
    SparkBatch,
    build_dead_letter_checks,
    build_pgque_alerts,
    build_pgque_schedule,
    build_pgque_sensor,
    build_queue_assets,
    pgque_asset,
    pgque_window_asset,
)
from pgque_dagster.checks import build_consumer_lag_checks, build_queue_health_checks
from pgque_dagster.components.batch_consumer import (
    AssetOptions,
    ConsumerLagChecks,
    SensorOptions,
)
from pgque_dagster.components.options import Options, read_duration
from pgque_dagster.components.payload import Payload
from pgque_dagster.components.pgque import AlertOptions, TickerSensorOptions
from pgque_dagster.components.queue import DeadLetterChecks, ObservationOptions, QueueHealthChecks
from pgque_dagster.components.schedules import ScheduleOptions
from pgque_dagster.components.sinks import ParquetSinkOptions
from pgque_dagster.components.window import WindowAssetOptions
from pgque_dagster.sensors.observation import build_pgque_observation_sensor
from pgque_dagster.sensors.ticker_sensor import build_pgque_ticker_sensor

# The parameters that YAML leaves out, each with the reason.
NOT_IN_YAML = {
    build_pgque_sensor: {"assets", "name"},  # the component's own asset, and a name derived from it
    build_dead_letter_checks: {"queues"},  # the component's own queue
    build_queue_assets: {"consumers"},  # those of the project's components
    build_queue_health_checks: {"queues"},
    build_consumer_lag_checks: {"assets"},
    build_pgque_observation_sensor: {"queues", "name"},
    build_pgque_ticker_sensor: set(),
    build_pgque_alerts: {"queues"},  # all queues that the project declares
    build_pgque_schedule: {"assets", "name"},
    pgque_asset: {"asset_options"},
    pgque_window_asset: {"asset_options"},
    SparkBatch.payload: {"self"},
}


def python_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    left_out = NOT_IN_YAML.get(function, set())
    parameters = inspect.signature(function).parameters
    return {name: each.default for name, each in parameters.items() if name not in left_out}


def yaml_defaults(options: type[Options]) -> dict[str, Any]:
    return {
        field.alias or name: (
            inspect.Parameter.empty
            if field.is_required()
            else field.get_default(call_default_factory=True)
        )
        for name, field in options.model_fields.items()
    }


@pytest.mark.parametrize(
    ("options", "function"),
    [
        (AssetOptions, pgque_asset),
        (WindowAssetOptions, pgque_window_asset),
        (ScheduleOptions, build_pgque_schedule),
        (Payload, SparkBatch.payload),
        (SensorOptions, build_pgque_sensor),
        (DeadLetterChecks, build_dead_letter_checks),
        (QueueHealthChecks, build_queue_health_checks),
        (ConsumerLagChecks, build_consumer_lag_checks),
        (QueueComponent, build_queue_assets),
        (ObservationOptions, build_pgque_observation_sensor),
        (TickerSensorOptions, build_pgque_ticker_sensor),
        (AlertOptions, build_pgque_alerts),
    ],
)
def test_yaml_has_every_parameter_of_python_with_its_default(
    options: type[Options], function: Callable[..., Any]
) -> None:
    in_yaml = yaml_defaults(options)

    for name, default in python_defaults(function).items():
        assert name in in_yaml
        assert (in_yaml[name] or None) == (default or None), name


# The component passes the session, and Dagster would show the values of credentials.
NO_ATTRIBUTES = {"pyspark", "storage_options"}


@pytest.mark.parametrize(
    ("component", "resource"),
    [(PgqueComponent, PgqueResource), (ParquetSinkOptions, ParquetBatchIOManager)],
)
def test_yaml_has_every_field_of_a_resource_with_its_default(
    component: type[Options], resource: type[dg.ConfigurableResource[Any]]
) -> None:
    in_yaml = yaml_defaults(component)

    for name in resource.model_fields.keys() - NO_ATTRIBUTES:
        field = resource.model_fields[name]
        assert name in in_yaml
        assert field.is_required() or in_yaml[name] == field.get_default(call_default_factory=True)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        (1.5, timedelta(seconds=1.5)),
    ],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(
    text: str | float, duration: timedelta
) -> None:
    component = BatchConsumerComponent.from_attributes_dict(
        attributes={"queue": "orders", "transform": "math.sqrt", "timeout": text}
    )

    assert component.timeout == duration


@pytest.mark.parametrize("text", ["20seconds", "7 moons", "-5s", "5 m", ""])
def test_what_is_no_duration_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 15m, 12h or 30d; or seconds"):
        read_duration(text)
