"""The components of the resource and of a queue."""

from datetime import timedelta

import dagster as dg
import pytest

import pgque_dagster
from pgque_dagster import (
    Alert,
    PgqueComponent,
    PgqueResource,
    QueueComponent,
    build_consumer_lag_checks,
)
from pgque_dagster.client import Client
from tests.support.checks import revenue


def test_the_url_of_the_environment_is_read_when_it_is_needed_and_not_shown(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = PgqueComponent.from_attributes_dict(attributes={"url": "{{ env.SHOP_URL }}"})
    definitions = dg.build_defs_for_component(component)
    monkeypatch.setenv("SHOP_URL", database_url)
    seen = []

    @dg.asset
    def looks(pgque: PgqueResource) -> None:
        seen.append(pgque.url)

    result = dg.materialize([looks], resources={"pgque": definitions.resources["pgque"]})  # type: ignore[index]

    assert result.success
    assert seen == [database_url]
    assert database_url not in str(definitions.resources)


def test_a_url_put_together_from_the_environment_is_refused() -> None:
    with pytest.raises(Exception, match="would be shown with their values"):
        PgqueComponent.from_attributes_dict(
            attributes={"url": "postgresql://app:{{ env.PASSWORD }}@db/shop"}
        )


def test_a_spark_session_of_ones_own_is_left_alone() -> None:
    definitions = dg.build_defs_for_component(PgqueComponent(spark_config=None))

    assert set(definitions.resources or {}) == {"pgque"}


def test_ticking_by_sensor_brings_the_sensor() -> None:
    by_sensor = dg.build_defs_for_component(PgqueComponent(ticking="sensor"))
    by_others = dg.build_defs_for_component(PgqueComponent())

    assert [sensor.name for sensor in by_sensor.sensors or []] == ["pgque_ticker_sensor"]
    assert not by_others.sensors


def to_pager(alert: Alert) -> None:
    ALERTS.append(alert)


ALERTS: list[Alert] = []


def test_alerts_are_told_to_the_function_that_yaml_names(database_url: str) -> None:
    component = PgqueComponent.from_attributes_dict(
        attributes={
            "queues": ["nosuch"],
            "alerts": {"notify": f"{__name__}.to_pager", "max_lag": "5m"},
        }
    )
    (sensor,) = dg.build_defs_for_component(component).sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("pgque_alerts", 60)

    sensor(dg.build_sensor_context(), pgque=PgqueResource(url=database_url))

    assert [(alert.queue, alert.problem) for alert in ALERTS] == [("nosuch", "queue")]


def test_alerts_without_a_queue_to_watch_are_refused() -> None:
    component = PgqueComponent.from_attributes_dict(
        attributes={"alerts": {"notify": f"{__name__}.to_pager"}}
    )

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="has no queue to watch"):
        dg.build_defs_for_component(component)


def test_a_queue_brings_its_assets_its_check_and_the_job_that_runs_it(client: Client) -> None:
    component = QueueComponent(queue="orders")
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(
            asset_checks=build_consumer_lag_checks([revenue], max_lag=timedelta(hours=1)),
            resources={"pgque": PgqueResource(url=client.url)},
        ),
    )

    result = definitions.resolve_job_def("orders_checks").execute_in_process()
    (schedule,) = definitions.schedules or []

    checks = {each.check_name for each in result.get_asset_check_evaluations()}
    assert {"dead_letters", "held_batch", "consumer_lag_revenue"} <= checks
    assert definitions.resolve_asset_graph().get_all_asset_keys() == {
        pgque_dagster.queue_key("orders"),
        pgque_dagster.dead_letters_key("orders"),
    }
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.cron_schedule == "*/5 * * * *"
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def test_the_checks_of_a_queue_may_have_no_schedule() -> None:
    definitions = dg.build_defs_for_component(QueueComponent(queue="orders", check_schedule=None))

    assert len(definitions.jobs or []) == 1
    assert not definitions.schedules


def test_a_queue_is_observed_and_shows_its_producers() -> None:
    component = QueueComponent(queue="orders", producers=[dg.AssetKey("orders_table")])
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(resources={"pgque": PgqueResource()}),
    )
    (sensor,) = definitions.sensors or []
    unobserved = dg.build_defs_for_component(QueueComponent(queue="orders", observation=None))

    assert sensor.name == "orders_observation"
    assert definitions.resolve_asset_graph().get(pgque_dagster.queue_key("orders")).parent_keys == {
        dg.AssetKey("orders_table")
    }
    assert not unobserved.sensors


def test_a_queue_without_checks_has_no_job() -> None:
    component = QueueComponent(
        queue="orders",
        dead_letter_checks=None,
        queue_health_checks=None,
    )
    definitions = dg.build_defs_for_component(component)

    assert not definitions.asset_checks
    assert not definitions.jobs
    assert not definitions.schedules


def test_a_subclass_of_a_queue_changes_its_assets() -> None:
    class Owned(QueueComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(owners=["team:orders"])

    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(Owned(queue="orders")),
        dg.Definitions(resources={"pgque": PgqueResource()}),
    )

    graph = definitions.resolve_asset_graph()
    assert [graph.get(key).owners for key in graph.get_all_asset_keys()] == [["team:orders"]] * 2
