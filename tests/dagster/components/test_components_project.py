"""Components in a project: scaffolded, checked by `dg`, and loaded together."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

import pgque_dagster
from pgque_dagster.client import Client
from tests.support.dg_project import DgProject
from tests.support.events import publish


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


def test_a_scaffolded_asset_of_windows_passes_the_checks(
    project: DgProject, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", database_url)
    for arguments in (
        ["PgqueComponent", "pgque"],
        ["QueueComponent", "orders"],
        ["WindowComponent", "days", "--queue", "orders"],
    ):
        project.run("scaffold", "defs", f"pgque_dagster.{arguments[0]}", *arguments[1:])

    checked = project.run("check", "defs")

    assert "All definitions loaded successfully." in checked
    assert project.load().resolve_assets_def("days").partitions_def is not None


# The wrong lines are marked; the others are correct.
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
  lease_ttl: 20 moons  # wrong
  slices: four  # wrong
  deps:
    - 7  # wrong
  payload:
    schema: id bigint
    on_malformed: dead_leter  # wrong
    max_malformed: 10  # wrong
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
        # Line 2 is also reported, for the attributes that are missing.
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


def test_a_queue_names_the_components_that_consume_it(project: DgProject) -> None:
    consumer = (
        "type: pgque_dagster.BatchConsumerComponent\nattributes: {{transform: math.sqrt, {}}}\n"
    )
    project.write("pgque", "type: pgque_dagster.PgqueComponent\nattributes: {queues: [returns]}\n")
    project.write("orders", "type: pgque_dagster.QueueComponent\nattributes: {queue: orders}\n")
    project.write("revenue", consumer.format("queue: orders, name: revenue, consumer: sales"))
    project.write("refunds", consumer.format("queue: returns, name: refunds"))

    queue = project.load().resolve_asset_graph().get(pgque_dagster.queue_key("orders"))

    assert "`sales`" in str(queue.description)
    assert "refunds" not in str(queue.description)


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
    assert "revenue is on queue 'odrers', which is not declared" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("queue", "way"),
    [
        ("orders", "add a QueueComponent for it, or add orders to `queues`"),
        ("postgremq.orders", "declared: add orders to `topics`"),
        ("qgres.orders", "declared: add orders to `serial_queues`"),
    ],
)
def test_the_error_names_the_option_that_declares_the_queue(
    project: DgProject, queue: str, way: str
) -> None:
    project.write("pgque", "type: pgque_dagster.PgqueComponent\n")
    project.write(
        "revenue",
        "type: pgque_dagster.BatchConsumerComponent\n"
        f"attributes: {{queue: {queue}, transform: math.sqrt, name: revenue}}\n",
    )
    with pytest.raises(Exception, match="pgque") as raised:
        project.load()
    assert way in str(raised.value.__cause__)


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
