"""Components: the Python API in YAML, under the same names and with the same defaults."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession

import pgque_dagster
from pgque_dagster import (
    BatchConsumerComponent,
    ParquetBatchIOManager,
    PgqueComponent,
    PgqueResource,
    QueueComponent,
    SparkBatch,
    build_dead_letter_checks,
    build_pgque_sensor,
    build_queue_assets,
    pgque_asset,
)
from pgque_dagster.checks import build_consumer_lag_checks, build_queue_health_checks
from pgque_dagster.client import Client
from pgque_dagster.components.batch_consumer import (
    AssetOptions,
    ConsumerLagChecks,
    ParquetSink,
    Payload,
    SensorOptions,
)
from pgque_dagster.components.options import Options, read_duration
from pgque_dagster.components.pgque import TickerSensorOptions
from pgque_dagster.components.queue import (
    DeadLetterChecks,
    ObservationOptions,
    QueueHealthChecks,
)
from pgque_dagster.observation import build_pgque_observation_sensor
from pgque_dagster.ticker_sensor import build_pgque_ticker_sensor
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.dg_project import DgProject
from tests.support.events import make_queue, publish


def keep(events: DataFrame) -> list[str]:
    """Keeps payloads."""
    return sorted(row.ev_data for row in events.collect())


def consumer(**attributes: Any) -> BatchConsumerComponent:
    return BatchConsumerComponent(**{"queue": "orders", "transform": keep, **attributes})


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        make_queue(client)
        yield client


def consume(
    component: BatchConsumerComponent, url: str, spark: SparkSession, *others: Any
) -> tuple[dg.ExecuteInProcessResult, list[Any]]:
    """Runs a component's asset on the next batch; returns what was stored, too."""
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


# ---- the same API ------------------------------------------------------------------------------

# Left out of YAML, each for its reason.
NOT_IN_YAML = {
    build_pgque_sensor: {"assets", "name"},  # the component's own asset, and a name after it
    build_dead_letter_checks: {"queues"},  # the component's own queue
    build_queue_assets: set(),
    build_queue_health_checks: {"queues"},
    build_consumer_lag_checks: {"assets"},
    build_pgque_observation_sensor: {"queues", "name"},
    build_pgque_ticker_sensor: set(),
    pgque_asset: {"asset_options"},
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
        (Payload, SparkBatch.payload),
        (SensorOptions, build_pgque_sensor),
        (DeadLetterChecks, build_dead_letter_checks),
        (QueueHealthChecks, build_queue_health_checks),
        (ConsumerLagChecks, build_consumer_lag_checks),
        (QueueComponent, build_queue_assets),
        (ObservationOptions, build_pgque_observation_sensor),
        (TickerSensorOptions, build_pgque_ticker_sensor),
    ],
)
def test_yaml_has_every_parameter_of_python_with_its_default(
    options: type[Options], function: Callable[..., Any]
) -> None:
    in_yaml = yaml_defaults(options)

    for name, default in python_defaults(function).items():
        assert name in in_yaml
        assert (in_yaml[name] or None) == (default or None), name


@pytest.mark.parametrize(
    ("component", "resource"),
    [(PgqueComponent, PgqueResource), (ParquetSink, ParquetBatchIOManager)],
)
def test_yaml_has_every_field_of_a_resource_with_its_default(
    component: type[Options], resource: type[dg.ConfigurableResource[Any]]
) -> None:
    in_yaml = yaml_defaults(component)

    for name, field in resource.model_fields.items():
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
        attributes={"queue": "orders", "transform": "math.sqrt", "lease_ttl": text}
    )

    assert component.lease_ttl == duration


@pytest.mark.parametrize("text", ["20 seconds", "-5s", "5 m", ""])
def test_what_is_no_duration_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write seconds, or 90s"):
        read_duration(text)


# ---- the resource ------------------------------------------------------------------------------


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


# ---- a queue -----------------------------------------------------------------------------------


def test_a_queue_brings_its_assets_its_check_and_the_job_that_runs_it(client: Client) -> None:
    component = QueueComponent(queue="orders", check_schedule="*/5 * * * *")
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(resources={"pgque": PgqueResource(url=client.url)}),
    )

    result = definitions.resolve_job_def("orders_checks").execute_in_process()
    (schedule,) = definitions.schedules or []

    checks = {each.check_name for each in result.get_asset_check_evaluations()}
    assert "dead_letters" in checks
    assert len(checks) > 1
    assert definitions.resolve_asset_graph().get_all_asset_keys() == {
        pgque_dagster.queue_key("orders"),
        pgque_dagster.dead_letters_key("orders"),
    }
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.cron_schedule == "*/5 * * * *"


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
        check_schedule="*/5 * * * *",
    )
    definitions = dg.build_defs_for_component(component)

    assert not definitions.asset_checks
    assert not definitions.jobs
    assert not definitions.schedules


def test_a_subclass_of_a_queue_changes_its_assets() -> None:
    class Owned(QueueComponent):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(owners=["team:orders"])

    definitions = dg.build_defs_for_component(Owned(queue="orders"))

    assert [spec.owners for spec in definitions.assets or []] == [["team:orders"]] * 2  # type: ignore[union-attr]


# ---- a consumer --------------------------------------------------------------------------------


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
            "sensor": {"minimum_interval_seconds": 7, "default_status": "STOPPED"},
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
    assert spec.description == "Keeps payloads."
    assert dg.AssetKey(["rates", "daily"]) in {dep.asset_key for dep in spec.deps}
    assert (spec.kinds, spec.group_name, list(spec.owners)) == ({"table"}, "sales", ["team:sales"])
    assert spec.automation_condition is not None
    assert asset.get_io_manager_key_for_asset_key(spec.key) == "kept_io_manager"
    assert set(definitions.resources or {}) == {"kept_io_manager"}
    assert {key.name for key in check.check_keys} == {"consumer_lag"}
    assert sensor.name == "kept_sensor"
    assert sensor.minimum_interval_seconds == 7
    assert sensor.default_status == dg.DefaultSensorStatus.STOPPED


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
        ("keep", "is no import path"),
        (".keep", "is no import path"),
        ("no_such_module.keep", "cannot be imported: No module named 'no_such_module'"),
        ("math.no_such_function", "module math has no function 'no_such_function'"),
    ],
)
def test_a_transform_that_is_not_there_is_named(reference: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        BatchConsumerComponent.from_attributes_dict(
            attributes={"queue": "orders", "transform": reference}
        )


# ---- in a project ------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    return project


def test_what_is_scaffolded_passes_the_checks_and_works(
    project: DgProject,
    database_url: str,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQUE_URL", database_url)
    for arguments in (
        ["PgqueComponent", "pgque"],
        ["QueueComponent", "orders"],
        ["BatchConsumerComponent", "revenue", "--queue", "orders"],
    ):
        project.run("scaffold", "defs", f"pgque_dagster.{arguments[0]}", *arguments[1:])
    project.replace("pgque", "# url:", "url:")
    checked = project.run("check", "defs")

    job = project.load().resolve_implicit_global_asset_job_def()
    registered = job.execute_in_process()
    with Client(database_url) as client:
        client.configure_queue("orders", ticker_max_lag="0")
        publish(client, ["a", "b"], queue="orders")
        consumed = job.execute_in_process()
        left = client.next_batch("orders", "revenue")

    assert "All component YAML validated successfully." in checked
    assert "All definitions loaded successfully." in checked
    assert registered.success and consumed.success
    assert [
        row["count"] for row in spark.read.parquet(f"{project.folder}/output/revenue").collect()
    ] == [2]
    assert left is None


# Each line that is wrong says so; the others are right.
MISSPELT = {
    "pgque": """\
type: pgque_dagster.PgqueComponent
attributes:
  instal: upgrade  # wrong
  spark_config: local  # wrong
""",
    "orders": """\
type: pgque_dagster.QueueComponent
attributes:
  queue: orders
  dead_letter_check: null  # wrong
  dead_letter_checks:
    max_dead_letters: none  # wrong
    severity: EROR  # wrong
""",
    "revenue": """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transfrom: .transform.revenue  # wrong
  lease_ttl: 20 seconds  # wrong
  slices: four  # wrong
  deps:
    - 7  # wrong
  payload:
    schema: id bigint
    on_malformed: dead_leter  # wrong
  sink:  # wrong
    basedir: output  # wrong
  sensor:
    max_age: 5s
    min_event: 1  # wrong
    backoff: "{{ datetime.timedelta(seconds=5) }}"
    default_status: RUNING  # wrong
""",
}


def test_each_typo_is_reported_with_its_line(project: DgProject) -> None:
    for name, text in MISSPELT.items():
        project.write(name, text)

    found = project.run("check", "yaml", fails=True)

    for name, text in MISSPELT.items():
        lines = enumerate(text.splitlines(), start=1)
        wrong = {number for number, line in lines if line.endswith("# wrong")}
        # Beside those, line 2 is told what it lacks.
        assert project.lines_reported(found, name) - {2} == wrong - {2}


def test_two_components_of_one_consumer_are_refused_when_they_are_loaded(
    project: DgProject,
) -> None:
    both = "type: pgque_dagster.BatchConsumerComponent\nattributes: {{queue: orders, {}}}\n"
    project.write("pgque", "type: pgque_dagster.PgqueComponent\nattributes: {queues: [orders]}\n")
    project.write("one", both.format("transform: math.sqrt, name: one, consumer: revenue"))
    project.write("two", both.format("transform: math.sqrt, name: revenue"))

    with pytest.raises(Exception, match="pgque") as raised:
        project.load()
    assert "2 components share the consumer orders/revenue" in str(raised.value.__cause__)


def test_a_consumer_of_a_queue_that_nothing_declares_is_refused_when_it_is_loaded(
    project: DgProject,
) -> None:
    project.write("pgque", "type: pgque_dagster.PgqueComponent\n")
    project.write("orders", "type: pgque_dagster.QueueComponent\nattributes: {queue: orders}\n")
    project.write(
        "revenue",
        "type: pgque_dagster.BatchConsumerComponent\n"
        "attributes: {queue: odrers, transform: math.sqrt, name: revenue}\n",
    )

    with pytest.raises(Exception, match="pgque") as raised:
        project.load()
    assert "revenue is on queue 'odrers', which nothing declares" in str(raised.value.__cause__)


def test_the_demo_is_right_in_every_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dg check yaml` looks only at the last of several components of a type."""
    import yaml

    folder = Path(pgque_dagster.__file__).parent.parent / "defs"
    components = [
        component
        for path in folder.rglob("defs.yaml")
        for component in yaml.safe_load_all(path.read_text())
    ]

    for component in components:
        _, name = component["type"].split(".")
        schema = getattr(pgque_dagster, name).get_model_cls().model_json_schema()
        Draft202012Validator(schema).validate(component["attributes"])
    assert len(components) == 5


def test_dagster_finds_no_components_where_spark_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "QueueComponent" in dir(pgque_dagster)

    monkeypatch.setattr(pgque_dagster, "find_spec", lambda package: None)

    assert "QueueComponent" not in dir(pgque_dagster)
