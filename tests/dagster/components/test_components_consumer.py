"""The component of a consumer: what reaches its transform, its asset and its sensor."""

from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import BatchConsumerComponent, PgqueResource, SparkBatch, queue_key
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.events import publish


def keep(events: DataFrame) -> list[str]:
    """Returns the payloads."""
    return sorted(row.ev_data for row in events.collect())


def consumer(**attributes: Any) -> BatchConsumerComponent:
    return BatchConsumerComponent(**{"queue": "orders", "transform": keep, **attributes})


def consume(
    component: BatchConsumerComponent, url: str, spark: SparkSession, *others: Any
) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
    """Runs a component's asset on the next batch; returns the result and what was stored."""
    store = StoringIOManager()
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(
            assets=others,
            resources={
                "pgque": PgqueResource(url=url),
                "pyspark": SessionHolder(spark),
                "io_manager": store,
            },
        ),
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(raise_on_error=False), store.stored


def test_a_transform_gets_the_events_of_a_batch_which_is_acked(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["b", "a"])

    result, stored = consume(consumer(consumer="revenue"), client.url, spark)

    assert result.success
    assert stored == [["a", "b"]]
    assert client.next_batch("orders", "revenue") is None


def test_with_a_schema_a_transform_gets_payloads_and_malformed_events_are_treated_as_said(
    client: Client, spark: SparkSession
) -> None:
    publish(client, [{"total": 2}, "{broken"])

    def totals(payloads: DataFrame) -> list[float]:
        return [row.total for row in payloads.collect()]

    attributes: dict[str, Any] = {"consumer": "revenue", "transform": totals}
    refused, _ = consume(
        consumer(**attributes, payload={"schema": "total double", "on_malformed": "fail"}),
        client.url,
        spark,
    )
    result, stored = consume(
        consumer(**attributes, payload={"schema": "total double"}), client.url, spark
    )

    assert not refused.success
    assert result.success
    assert stored == [[2.0]]
    assert [count.count for count in client.dead_letter_counts("orders")] == [1]


def test_a_transform_gets_what_it_names_beside_the_data(
    client: Client, spark: SparkSession
) -> None:
    publish(client, ["a"])

    @dg.asset
    def tax() -> float:
        return 0.5

    def named(
        events: DataFrame, context: dg.AssetExecutionContext, batch: SparkBatch, tax: float
    ) -> tuple[int, str, int, float]:
        return events.count(), context.asset_key.to_user_string(), batch.event_count, tax

    result, stored = consume(consumer(transform=named, consumer="revenue"), client.url, spark, tax)

    assert result.success
    assert stored[-1] == (1, "named", 1, 0.5)


def test_a_transform_may_take_the_batch_itself(client: Client, spark: SparkSession) -> None:
    publish(client, ["a", "b"])

    def counted(batch: SparkBatch) -> int:
        return batch.event_count

    _, stored = consume(consumer(transform=counted, consumer="revenue"), client.url, spark)

    assert stored == [2]


def test_a_subclass_changes_the_asset_and_what_is_done_with_a_batch(
    client: Client, spark: SparkSession
) -> None:
    class Loud(BatchConsumerComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.merge_attributes(tags={"team": "sales"})

        def execute(
            self, context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any
        ) -> Any:
            return [text.upper() for text in super().execute(context, batch, **inputs)]

    publish(client, ["a"])
    component = Loud(queue="orders", transform=keep, name="loud", consumer="revenue")
    (asset,) = dg.build_defs_for_component(component).assets or []

    _, stored = consume(component, client.url, spark)

    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.tags_by_key[asset.key]["team"] == "sales"
    assert stored == [["A"]]


def test_options_reach_the_asset_and_the_sensor() -> None:
    component = BatchConsumerComponent.from_attributes_dict(
        attributes={
            "queue": "orders",
            "transform": f"{__name__}.keep",
            "name": "kept",
            "key_prefix": ["shop"],
            "deps": ["rates/daily"],
            "kinds": ["table"],
            "group_name": "sales",
            "owners": ["team:sales"],
            "automation_condition": "{{ dg.AutomationCondition.eager() }}",
            "sink": {"base_dir": "output"},
            "consumer_lag_checks": {"max_lag": "5m"},
            "sensor": {"minimum_interval_seconds": 7, "default_status": "RUNNING"},
        }
    )

    definitions = dg.build_defs_for_component(component)
    (asset,) = definitions.assets or []
    (sensor,) = definitions.sensors or []
    (check,) = definitions.asset_checks or []
    assert isinstance(asset, dg.AssetsDefinition)
    assert isinstance(sensor, dg.SensorDefinition)
    (spec,) = asset.specs

    assert spec.key == dg.AssetKey(["shop", "kept"])
    assert spec.description == "Returns the payloads."
    assert dg.AssetKey(["rates", "daily"]) in {dep.asset_key for dep in spec.deps}
    assert (spec.kinds, spec.group_name, list(spec.owners)) == ({"table"}, "sales", ["team:sales"])
    assert spec.automation_condition is not None
    assert asset.get_io_manager_key_for_asset_key(spec.key) == "kept_io_manager"
    assert set(definitions.resources or {}) == {"kept_io_manager"}
    assert check.check_keys == {dg.AssetCheckKey(queue_key("orders"), "consumer_lag_kept")}
    assert sensor.name == "kept_sensor"
    assert sensor.minimum_interval_seconds == 7
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_consumer_without_a_sensor_has_none() -> None:
    assert not dg.build_defs_for_component(consumer(sensor=None)).sensors


def no_parameter() -> None:
    return None


def takes_batch(batch: SparkBatch) -> None:
    return None


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"transform": no_parameter}, "the transform has no parameter"),
        ({"transform": takes_batch, "payload": {"schema": "id int"}}, "leave out `payload`"),
        ({"sink": {"base_dir": "x"}, "io_manager_key": "y"}, "leave one out"),
        ({"payload": {"schema": "id int", "on_malformed": "ignore"}}, "'dead_letter', 'retry'"),
    ],
)
def test_attributes_that_contradict_each_other_are_refused(
    attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        consumer(**attributes)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("keep", "is not an import path"),
        (".keep", "is not an import path"),
        ("no_such_module.keep", "cannot be imported: No module named 'no_such_module'"),
        ("math.no_such_function", "module math has no function 'no_such_function'"),
    ],
)
def test_a_transform_that_is_not_there_is_named(reference: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        BatchConsumerComponent.from_attributes_dict(
            attributes={"queue": "orders", "transform": reference}
        )
