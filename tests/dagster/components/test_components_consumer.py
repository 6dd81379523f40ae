"""The components that compute: what reaches their transform, assets, sensor and sink."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from jsonschema import Draft202012Validator
from pyspark.sql import DataFrame

from pgque_dagster import BatchConsumerComponent, SparkBatch, WindowComponent, queue_key
from pgque_dagster.spark import ParquetSink
from tests.dagster.orders import Orders, Result
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.queues.windows import send_at_hours
from tests.support.servers.s3 import S3, s3_server

HOURLY = "{{ dg.HourlyPartitionsDefinition(start_date='2026-01-01-00:00') }}"


def keep(events: DataFrame) -> list[str]:
    """Returns the payloads."""
    return sorted(row.ev_data for row in events.collect())


def frame(events: DataFrame) -> DataFrame:
    return events.select("ev_data")


def totals(payloads: DataFrame) -> list[float]:
    return [row.total for row in payloads.collect()]


def takes_batch(batch: SparkBatch) -> int:
    return batch.event_count


def takes_more(
    events: DataFrame, context: dg.AssetExecutionContext, batch: SparkBatch, tax: float
) -> tuple[int, str, int, float]:
    return events.count(), context.asset_key.to_user_string(), batch.event_count, tax


def no_parameter() -> None:
    return None


async def hidden(events: DataFrame) -> DataFrame:
    return events


def by_name_only(*, events: DataFrame) -> DataFrame:
    return events


def by_place_only(events: DataFrame, tax: float, /) -> DataFrame:
    return events


def any_number(events: DataFrame, **others: Any) -> DataFrame:
    return events


class Revenue:
    """A class, which is called as a function is."""

    def __init__(self, events: DataFrame) -> None:
        """Takes the events."""


def consumer(
    transform: str = "keep", kind: type[Any] = BatchConsumerComponent, **attributes: Any
) -> dg.Definitions:
    own = {"queue": "orders", "transform": f"{__name__}.{transform}", **attributes}
    return dg.build_defs_for_component(kind.from_attributes_dict(attributes=own))


def window(**attributes: Any) -> dg.Definitions:
    return consumer("frame", WindowComponent, **{"partitions_def": HOURLY, **attributes})


def assets_of(definitions: dg.Definitions) -> list[dg.AssetsDefinition]:
    return [each for each in definitions.assets or () if isinstance(each, dg.AssetsDefinition)]


def run(orders: Orders, definitions: dg.Definitions, *others: Any, **options: Any) -> Result:
    resources = definitions.resources
    return orders.run(*assets_of(definitions), *others, resources=resources, **options)


def test_a_transform_gets_the_events_of_a_batch_or_its_payloads_or_the_batch(
    orders: Orders,
) -> None:
    @dg.asset
    def tax() -> float:
        return 0.5

    store = StoringIOManager()
    of_revenue = {"consumer": "revenue", "name": "revenue"}
    for definitions in (
        consumer(**of_revenue),
        consumer("takes_batch", **of_revenue),
        consumer("totals", **of_revenue, payload={"schema": "total double"}),
    ):
        orders.publish([{"total": 2}, {"total": 1}])
        assert run(orders, definitions, manager=store).success
    orders.publish(["a"])
    assert run(orders, consumer("takes_more", **of_revenue), tax, manager=store).success

    assert store.stored[:2] == [['{"total":1}', '{"total":2}'], 2]
    assert sorted(store.stored[2]) == [1.0, 2.0]
    assert store.stored[-1] == (1, "revenue", 1, 0.5)
    assert orders.is_consumed()


def test_malformed_events_are_treated_as_the_payload_says(orders: Orders) -> None:
    def totals_of(**payload: Any) -> dg.Definitions:
        return consumer("totals", consumer="revenue", payload={"schema": "total int", **payload})

    orders.publish([{"total": 0.5}] * 8)

    assert not run(orders, totals_of()).success
    assert not run(orders, totals_of(on_malformed="fail", max_malformed=1.0)).success
    assert orders.dead_letters() == 0
    assert run(orders, totals_of(max_malformed="{{ 1.0 }}")).success
    assert orders.dead_letters() == 8


def test_a_subclass_changes_the_asset_and_what_is_done_with_a_batch(orders: Orders) -> None:
    class Loud(BatchConsumerComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.merge_attributes(tags={"team": "sales"})

        def execute(
            self, context: dg.AssetExecutionContext, batch: SparkBatch, **inputs: Any
        ) -> Any:
            return [text.upper() for text in super().execute(context, batch, **inputs)]

    orders.publish(["a"])
    loud = consumer(kind=Loud, name="loud", consumer="revenue")
    store = StoringIOManager()

    assert run(orders, loud, manager=store).success
    assert store.stored == [["A"]]
    (asset,) = assets_of(loud)
    assert asset.tags_by_key[asset.key]["team"] == "sales"


def test_options_reach_the_assets_the_sensor_and_the_check() -> None:
    definitions = consumer(
        name="kept",
        key_prefix=["shop"],
        deps=["rates/daily"],
        kinds=["table"],
        group_name="sales",
        owners=["team:sales"],
        metadata={"dagster/table_name": "sales.kept"},
        automation_condition="{{ dg.AutomationCondition.eager() }}",
        sink={"base_dir": "output"},
        consumer_lag_checks={"max_lag": "5m"},
        sensor={"minimum_interval_seconds": 7, "default_status": "RUNNING"},
    )
    (asset,) = assets_of(definitions)
    (sensor,) = definitions.sensors or []
    (check,) = definitions.asset_checks or []
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
    assert (sensor.name, sensor.minimum_interval_seconds) == ("kept_sensor", 7)
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING


def test_a_schedule_takes_the_place_of_the_sensor_and_either_may_be_left_out() -> None:
    definitions = consumer(schedule={"cron_schedule": "0 * * * *"})

    (schedule,) = definitions.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.name, schedule.cron_schedule) == ("keep_schedule", "0 * * * *")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    assert not definitions.sensors
    bare = consumer(sensor=None, sink=None, io_manager_key="mine")
    assert not bare.sensors and not bare.schedules and not bare.resources
    assert [asset.key for asset in assets_of(bare)] == [dg.AssetKey("keep")]


def test_a_window_is_stored_by_the_sink_as_its_partition(orders: Orders, tmp_path: Path) -> None:
    hourly = window(name="hourly", sink={"base_dir": str(tmp_path)}, group_name="sales")
    send_at_hours(orders.client, [["a"], ["b"]])

    assert run(orders, hourly, partition_key="2026-01-01-01:00").success
    rows = ParquetSink(tmp_path / "hourly").read(orders.spark).collect()
    assert [(row.ev_data, row.batch_id) for row in rows] == [("b", 202601010100)]
    assert assets_of(hourly)[0].get_asset_spec().group_name == "sales"


def test_the_retries_of_a_window_are_named_by_attributes() -> None:
    (asset,) = assets_of(window(retry_policy={"max_retries": 3, "delay": "1m"}))
    assert asset.op.retry_policy == dg.RetryPolicy(max_retries=3, delay=60)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"transform": "no_parameter"}, "the transform has no parameter"),
        ({"transform": "hidden"}, "the transform is async"),
        ({"transform": "Revenue"}, "has no function 'Revenue'"),
        ({"transform": "by_name_only"}, "`events` of the transform cannot be passed by place"),
        ({"transform": "by_place_only"}, "`tax` of the transform cannot be passed by name"),
        ({"transform": "any_number"}, "`others` of the transform cannot be passed by name"),
        ({"transform": "takes_batch", "payload": {"schema": "id int"}}, "leave out `payload`"),
        ({"sink": {"base_dir": "x"}, "io_manager_key": "y"}, "leave one out"),
        (
            {"schedule": {"cron_schedule": "0 * * * *"}, "sensor": {"max_age": "5s"}},
            "`schedule` replaces `sensor`",
        ),
        ({"payload": {"schema": "id int", "on_malformed": "ignore"}}, "'dead_letter', 'fail'"),
        ({"sink": {"type": "postgers", "base_dir": "d"}}, "'postgers'"),
        ({"sink": {"type": "postgres", "mode": "merge"}}, "'merge'"),
        *(
            ({"payload": {"schema": "id int", "max_malformed": share}}, "max_malformed")
            for share in (-0.1, 1.1, float("nan"), True, "a tenth")
        ),
        ({"kind": WindowComponent, "partitions_def": "hourly"}, "write a template, such as"),
    ],
)
def test_attributes_that_make_no_sense_are_refused(
    attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
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
    attributes = {"queue": "orders", "transform": reference}
    with pytest.raises(Exception, match=message):
        BatchConsumerComponent.from_attributes_dict(attributes=attributes)


# Sinks


@pytest.mark.parametrize(
    "sink",
    [
        {"base_dir": "output"},
        {"type": "postgres", "mode": "add", "key": ["product"], "stage_schema": "stages"},
        {
            "type": "delta",
            "base_dir": "output",
            "mode": "upsert",
            "key": ["product"],
            "schema_evolution": "add_columns",
            "storage_options": {"a": "b"},
        },
        {
            "type": "iceberg",
            "warehouse": "output",
            "namespace": "sales",
            "catalog": {"type": "rest"},
            "catalog_schema": "lake",
            "schema_evolution": "add_columns",
            "storage_options": {"a": "b"},
        },
    ],
    ids=lambda sink: str(sink.get("type", "parquet")),
)
def test_the_options_of_a_sink_reach_its_io_manager(orders: Orders, sink: dict[str, Any]) -> None:
    definition = (consumer(name="kept", sink=sink).resources or {})["kept_io_manager"]

    with dg.build_resources({**orders.resources, "manager": definition}) as resources:
        manager = resources.manager

    assert type(manager).__name__.lower().startswith(str(sink.pop("type", "parquet")))
    assert {name: getattr(manager, name) for name in sink} == sink
    assert isinstance(manager.pyspark, SessionHolder)


def test_the_schema_of_yaml_knows_each_sink_and_position() -> None:
    """Which `dg check yaml` asks."""
    schema = Draft202012Validator(BatchConsumerComponent.get_model_cls().model_json_schema())
    given = {"queue": "orders", "transform": "math.sqrt"}

    for sink in (
        {"base_dir": "d"},
        {"type": "postgres", "mode": "upsert", "key": ["product"]},
        {"type": "delta", "base_dir": "d", "schema_evolution": "add_columns"},
        {"type": "iceberg", "warehouse": "s3://bucket", "catalog": {"type": "rest"}},
    ):
        schema.validate(given | {"sink": sink})
    for sink in ({"basedir": "d"}, {"type": "postgres", "warehouse": "d", "base_dir": "d"}):
        (error,) = schema.iter_errors(given | {"sink": sink})
        assert error.absolute_path[0] == "sink"
        assert "is not valid" in error.message
    for start in ("earliest", 7, "2026-05-24T18:00:00+00:00", "{{ env.START }}"):
        schema.validate(given | {"start_at": start})


@pytest.fixture
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


def test_credentials_in_yaml_are_names_of_environment_variables(
    orders: Orders, s3: S3, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in s3.options.items():
        monkeypatch.setenv(f"OF_THE_LAKE_{name.upper()}", value)
    options = {name: f"{{{{ env.OF_THE_LAKE_{name.upper()} }}}}" for name in s3.options}
    for kind in ("delta", "iceberg"):
        folder = {"warehouse" if kind == "iceberg" else "base_dir": s3.url(kind)}
        attributes = {
            "queue": "orders",
            "transform": f"{__name__}.frame",
            "consumer": "revenue",
            "sink": {"type": kind, **folder, "storage_options": options},
        }
        component = BatchConsumerComponent.from_attributes_dict(attributes=attributes)
        orders.publish([kind])
        assert run(orders, dg.build_defs_for_component(component)).success

        (stored,) = [name for name in s3.names(f"{kind}/") if name.endswith(".parquet")]
        assert s3.read_parquet(stored)["ev_data"].to_pylist() == [kind]
        assert s3.secret not in repr(component)
    assert s3.secret not in "".join(capfd.readouterr())
