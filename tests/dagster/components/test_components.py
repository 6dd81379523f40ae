"""Components of the resource and of a queue, and that YAML has what the Python API has."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import (
    Alert,
    IcebergBatchIOManager,
    PgqueComponent,
    PgqueResource,
    QueueComponent,
    SparkBatch,
    build_consumer_lag_checks,
    build_pgque_schedule,
    build_queue_assets,
    dead_letters_key,
    pgque_asset,
    pgque_multi_asset,
    queue_key,
)
from pgque_dagster.checks.alert_cursor import AlertCursor
from pgque_dagster.client import Client
from pgque_dagster.components.batch_consumer import AssetOptions, ScheduleOptions
from pgque_dagster.components.computed import OfDagster, Payload
from pgque_dagster.components.options import Options, read_duration
from pgque_dagster.components.sinks import IcebergSinkOptions
from tests.support.dagster.assets import revenue


def defaults(api: Any) -> dict[str, Any]:
    """The parameters of a function, or the fields of a class, with their defaults."""
    if not isinstance(api, type):
        parameters = inspect.signature(api).parameters.values()
        return {each.name: each.default for each in parameters}
    fields: Any = api.model_fields  # type: ignore[attr-defined]
    return {
        field.alias or name: inspect.Parameter.empty
        if field.is_required()
        else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }


@pytest.mark.parametrize(
    ("options", "api", "left_out"),
    [
        # What YAML leaves out is of the component itself, or derived from it.
        (AssetOptions, pgque_asset, {"asset_options", "partitions_def", "leave_out_failed"}),
        (ScheduleOptions, build_pgque_schedule, {"assets", "name"}),
        (Payload, SparkBatch.payload, {"self"}),
        (QueueComponent, build_queue_assets, {"consumers"}),
        (PgqueComponent, PgqueResource, set()),
        (IcebergSinkOptions, IcebergBatchIOManager, {"pyspark", "pgque"}),
    ],
)
def test_yaml_has_every_parameter_of_python_with_its_default(
    options: type[Options], api: Callable[..., Any], left_out: set[str]
) -> None:
    in_yaml = defaults(options)

    for name, default in defaults(api).items():
        if name not in left_out:
            assert name in in_yaml
            assert (in_yaml[name] or None) == (default or None), name


def test_yaml_has_options_of_dagsters_own_decorator_with_their_defaults() -> None:
    ours, dagsters = defaults(OfDagster), defaults(dg.asset)

    assert ours.keys() <= dagsters.keys()
    assert {name: value or None for name, value in ours.items()} == {
        name: dagsters[name] for name in ours
    }


def test_a_decorator_has_few_options_of_its_own() -> None:
    """Those of `@dg.asset` are passed on, so that a reader sees what is of queues."""
    for decorator in (pgque_asset, pgque_multi_asset):
        assert len(defaults(decorator)) - 1 <= 14


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), (1.5, 1.5)],
)
def test_a_duration_is_seconds_or_a_number_with_a_unit(text: str | float, seconds: float) -> None:
    assert read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["20seconds", "7 moons", "-5s", "5 m", ""])
def test_what_is_no_duration_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 15m, 12h or 30d; or seconds"):
        read_duration(text)


def build(kind: type[Any], **attributes: Any) -> dg.Definitions:
    return dg.build_defs_for_component(kind.from_attributes_dict(attributes=attributes))


def loaded(definitions: dg.Definitions, url: str | None = None, **more: Any) -> dg.Definitions:
    given = dg.Definitions(resources={"pgque": PgqueResource(url=url)}, **more)
    return dg.Definitions.merge(definitions, given)


def test_the_url_of_the_environment_is_read_when_it_is_needed_and_not_shown(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = build(
        PgqueComponent,
        url="{{ env.SHOP_URL }}",
        executors_url_env="SHOP_SECRET_URL",
        executors_url_file="/run/url",
    )
    monkeypatch.setenv("SHOP_URL", database_url)
    seen = []

    @dg.asset
    def looks(pgque: PgqueResource) -> None:
        url = pgque.database_url()
        seen.append((url, pgque.executors_url_env, pgque.executors_url_file))

    resources = definitions.resources or {}
    assert dg.materialize([looks], resources={"pgque": resources["pgque"]}).success
    assert seen == [(database_url, "SHOP_SECRET_URL", "/run/url")]
    assert database_url not in str(resources)
    with pytest.raises(Exception, match="would be shown with their values"):
        build(PgqueComponent, url="postgresql://app:{{ env.PASSWORD }}@db/shop")


def test_the_component_of_the_database_brings_a_session_and_a_ticker_only_if_told_to() -> None:
    by_sensor = build(PgqueComponent, ticking="sensor")
    neither = build(PgqueComponent, spark_config=None)

    assert [sensor.name for sensor in by_sensor.sensors or []] == ["pgque_ticker_sensor"]
    assert set(by_sensor.resources or {}) == {"pgque", "pyspark"}
    assert not neither.sensors
    assert set(neither.resources or {}) == {"pgque"}


def to_pager(alert: Alert) -> None:
    ALERTS.append(alert)


ALERTS: list[Alert] = []


def test_alerts_are_told_to_the_function_that_yaml_names(database_url: str) -> None:
    alerts = {"notify": f"{__name__}.to_pager", "max_lag": "5m"}
    (sensor,) = build(PgqueComponent, queues=["nosuch"], alerts=alerts).sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("pgque_alerts", 60)

    context = dg.build_sensor_context(cursor=AlertCursor().model_dump_json())
    sensor(context, pgque=PgqueResource(url=database_url))

    assert [(alert.queue, alert.problem) for alert in ALERTS] == [("nosuch", "queue")]
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="has no queue to watch"):
        build(PgqueComponent, alerts=alerts)


def test_a_queue_brings_its_assets_its_check_and_the_job_that_runs_it(client: Client) -> None:
    lag = build_consumer_lag_checks([revenue], max_lag=timedelta(hours=1))
    queue = build(QueueComponent, queue="orders", producers=["orders_table"])
    definitions = loaded(queue, client.url, asset_checks=lag)

    result = definitions.resolve_job_def("orders_checks").execute_in_process()
    (schedule,) = definitions.schedules or []
    (sensor,) = definitions.sensors or []
    graph = definitions.resolve_asset_graph()

    checks = {each.check_name for each in result.get_asset_check_evaluations()}
    assert {"dead_letters", "held_batch", "consumer_lag_revenue"} <= checks
    assert {queue_key("orders"), dead_letters_key("orders")} <= graph.get_all_asset_keys()
    assert graph.get(queue_key("orders")).parent_keys == {dg.AssetKey("orders_table")}
    assert sensor.name == "orders_observation"
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.cron_schedule == "*/5 * * * *"
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def test_a_queue_has_what_its_attributes_leave() -> None:
    running = build(QueueComponent, queue="orders", check_schedule={"default_status": "RUNNING"})
    by_hand = build(QueueComponent, queue="orders", check_schedule=None, observation=None)
    unchecked = build(
        QueueComponent, queue="orders", dead_letter_checks=None, queue_health_checks=None
    )

    (schedule,) = running.schedules or []
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    assert len(by_hand.jobs or []) == 1
    assert not by_hand.schedules and not by_hand.sensors
    assert not unchecked.asset_checks and not unchecked.jobs and not unchecked.schedules


def test_a_subclass_of_a_queue_changes_its_assets() -> None:
    class Owned(QueueComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(owners=["team:orders"])

    graph = loaded(build(Owned, queue="orders")).resolve_asset_graph()

    assert [graph.get(key).owners for key in graph.get_all_asset_keys()] == [["team:orders"]] * 2
