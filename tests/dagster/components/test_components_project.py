"""Components in a project: scaffolded, checked by `dg`, and loaded together."""

import textwrap
from pathlib import Path
from traceback import format_exception

import dagster as dg
import pytest
import yaml
from jsonschema import Draft202012Validator
from pyspark.sql import SparkSession

import pgque_dagster
from pgque_dagster import project_files
from pgque_dagster.client import Client
from pgque_dagster.spark import DeltaSink
from tests.support.dagster.dg_project import DgProject
from tests.support.queues.events import publish
from tests.support.queues.sql import connect

HEAD = {
    "pgque": "type: pgque_dagster.PgqueComponent\nattributes:\n",
    "orders": "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n",
    "revenue": "type: pgque_dagster.BatchConsumerComponent\nattributes:\n"
    "  queue: orders\n  transform: math.sqrt\n",
}


def test_what_is_scaffolded_passes_the_checks_and_works(
    project: DgProject, database_url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", database_url)
    monkeypatch.setenv("PGQUE_URL_BILLING", "postgresql://localhost/none")
    of_billing = ["--database", "billing"]
    for kind, *arguments in (
        ["PgqueComponent", "pgque"],
        ["PgqueComponent", "billing", *of_billing],
        ["QueueComponent", "orders"],
        ["QueueComponent", "returns", *of_billing],
        ["BatchConsumerComponent", "revenue", "--queue", "orders"],
        ["BatchConsumerComponent", "refunds", "--queue", "returns", *of_billing],
        ["WindowComponent", "days", "--queue", "orders"],
        ["TableReplicaComponent", "shop", "--tables", "public.orders, public.items"],
    ):
        project.run("scaffold", "defs", f"pgque_dagster.{kind}", *arguments)
    project.replace("pgque", "attributes:", "attributes:\n  url: '{{ env.PGQUE_URL }}'")
    checked = project.run("check", "defs")
    assert "All component YAML validated successfully." in checked
    assert "All definitions loaded successfully." in checked

    definitions = project.load()
    assert definitions.resolve_assets_def("days").partitions_def is not None
    assert definitions.resolve_assets_def(["shop", "public", "items"])
    assert definitions.get_sensor_def("billing__refunds_sensor").default_status.value == "RUNNING"
    assert definitions.get_sensor_def("shop_capture").default_status.value == "RUNNING"

    def run_job() -> bool:
        jobs = dg.Definitions(jobs=[dg.define_asset_job("revenue_job", "revenue")])
        job = dg.Definitions.merge(project.load(), jobs).resolve_job_def("revenue_job")
        return job.execute_in_process().success

    assert run_job(), "registers the queue and the consumer"
    with Client(database_url) as client:
        client.configure_queue("orders", ticker_max_lag="0")
        orders = [{"product": "tea", "total": 4.5}, {"product": "tea", "total": 1.5}]
        publish(client, orders, queue="orders")
        assert run_job()
        assert client.next_batch("orders", "revenue") is None
        project.edit(
            "revenue/transform.py", '("total"))', '("total"), f.count("*").alias("lines"))'
        )
        publish(client, orders[:1], queue="orders")
        assert run_job(), "the table gets the column that the function adds"
    rows = DeltaSink(f"{project.folder}/output/revenue").read(spark).orderBy("batch_id").collect()
    stored = [(row["product"], row["total"], row["lines"]) for row in rows]
    assert stored == [("tea", 6.0, None), ("tea", 4.5, 1)]


def test_dg_scaffolds_what_pgque_init_writes(project: DgProject, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "compose.yaml").write_text("mine")
    for kind, *arguments in (
        ["PgqueComponent", "pgque"],
        ["QueueComponent", "orders"],
        ["BatchConsumerComponent", "revenue", "--queue", "orders"],
        ["BatchConsumerComponent", "a-name", "--queue", "orders"],
    ):
        project.run("scaffold", "defs", f"pgque_dagster.{kind}", *arguments)

    def component(folder: Path, name: str) -> object:
        return yaml.safe_load((folder / name / "defs.yaml").read_text())

    ours = project_files.FOLDER / "shop/defs"
    for name in ("pgque", "orders", "revenue"):
        assert component(project.defs, name) == component(ours, name)
    transform = (project.defs / "revenue/transform.py").read_text()
    assert transform == (ours / "revenue/transform.py").read_text()
    for path in ("dagster.yaml", "tests/test_revenue.py"):
        theirs = (project_files.FOLDER / path).read_text()
        package = project.defs.parent.name
        assert (tmp_path / path).read_text() == theirs.replace("from shop.", f"from {package}.")
    assert (tmp_path / "compose.yaml").read_text() == "mine"
    assert "def a_name(" in (project.defs / "a-name/transform.py").read_text()
    assert not (tmp_path / "tests/test_a_name.py").exists(), "Python cannot import a-name"


# The wrong lines are marked; the others are correct.
MISSPELT = {
    "pgque": """\
type: pgque_dagster.PgqueComponent
attributes:
  instal: upgrade  # wrong
""",
    "orders": """\
type: pgque_dagster.QueueComponent
attributes:
  queue: orders
  dead_letter_check: null  # wrong
  dead_letter_checks:
""",
    "revenue": """\
type: pgque_dagster.BatchConsumerComponent
attributes:
  queue: orders
  transfrom: .transform.revenue  # wrong
  deps: 7  # wrong
  payload: [id]  # wrong
  sensor:
    max_age: 5s
    backoff: "{{ datetime.timedelta(seconds=5) }}"
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
        assert project.lines_reported(found, name) - {2} == wrong - {2}, name


def refused(project: DgProject, **components: str) -> str:
    """Returns the messages of the error, and of all its causes, that refuses a project."""
    for name, attributes in components.items():
        kind = name if name in HEAD else "revenue"
        head = HEAD[kind] if "queue:" not in attributes else HEAD[kind].partition("  queue")[0]
        project.write(name, head + textwrap.indent(attributes, "  ") + "\n")
    with pytest.raises(Exception, match="defs") as raised:
        project.load()
    return "".join(format_exception(raised.value))


@pytest.mark.parametrize(
    ("component", "attributes", "line", "problem"),
    [
        ("revenue", "sensor:\n  max_events: 0", None, "max_events is 0: it must be 1 or more"),
        ("revenue", "sensor:\n  max_events: true", 5, "True is not a number"),
        ("revenue", "sensor:\n  max_events: few", 5, "valid integer"),
        ("revenue", "sensor:\n  max_age: 999999999d", None, "at most 365 days"),
        ("revenue", "sensor:\n  max_age: .inf", 6, "inf is not a duration"),
        ("revenue", "sensor:\n  max_age: .nan", 6, "nan is not a duration"),
        ("revenue", "sensor: RUNNING", 5, "write its attributes below it"),
        ("revenue", "consumer: ''", None, "consumer is empty"),
        ("revenue", "lease_ttl: 0s", None, "more than 0"),
        ("revenue", "payload:\n  schema: a int\n  keep: [ev_tme]", 5, "Input should be 'ev_id'"),
        ("revenue", "sink:\n  type: postgres\n  mode: upsert", None, "mode upsert needs a key"),
        ("revenue", "sink:\n  type: postgres\n  key: [id]", None, "mode append has no key"),
        ("revenue", "sink: {type: delta, base_dir: d, key: [id]}", None, "mode append has no key"),
        ("revenue", "sink: {type: iceberg, warehouse: w, mode: upsert}", None, "needs a key"),
        ("revenue", "partitions: 257", None, "it must be at most 256"),
        ("revenue", "start_at: soon", None, "'soon' is not a position"),
        ("revenue", "consumer_lag_checks:\n  max_lag: 0", None, "it must be more than 0"),
        ("orders", "dead_letter_checks:\n  severity: EROR", 4, "Input should be 'WARN' or 'ERROR'"),
        (
            "pgque",
            "spark_config: {spark.master: local, spark.remote: 'sc://127.0.0.1'}",
            None,
            "leave out spark.master",
        ),
    ],
)
def test_an_attribute_out_of_range_is_an_error_with_its_place(
    project: DgProject, component: str, attributes: str, line: int | None, problem: str
) -> None:
    others = {} if component == "pgque" else {"pgque": "queues: [orders]"}

    told = refused(project, **others, **{component: attributes})

    assert problem in told
    # What a function of the Python API refuses, and what several attributes cause, has no line.
    assert (f"{component}/defs.yaml:{line}" if line else "defs.yaml (") in told


@pytest.mark.parametrize(
    ("components", "problem"),
    [
        (
            {
                "pgque": "queues: [orders]",
                "one": "name: one\nconsumer: revenue",
                "two": "name: revenue",
            },
            "one and revenue share the consumer orders/revenue",
        ),
        (
            {"pgque": "queues: [others]", "revenue": "name: revenue"},
            "consumer revenue is on queue 'orders', which is not declared: add a QueueComponent for"
            " it, or add orders to `queues`",
        ),
    ],
)
def test_components_that_do_not_fit_together_are_refused_when_they_are_loaded(
    project: DgProject, components: dict[str, str], problem: str
) -> None:
    assert problem in refused(project, **components)


def test_components_know_of_each_other(project: DgProject, database_url: str) -> None:
    queues = "queues: [returns]\n  queue_options: {orders: {retention: 7 days}}"
    project.write("pgque", f"{HEAD['pgque']}  url: '{database_url}'\n  {queues}\n")
    project.write("orders", HEAD["orders"])
    project.write("revenue", f"{HEAD['revenue']}  name: revenue\n  consumer: sales\n")
    of_returns = HEAD["revenue"].replace("orders", "returns")
    project.write("refunds", f"{of_returns}  name: refunds\n")

    definitions = project.load()

    # A queue names the components that consume it.
    queue = definitions.resolve_asset_graph().get(pgque_dagster.queue_key("orders"))
    assert "`sales`" in str(queue.description)
    assert "refunds" not in str(queue.description)
    resource = (definitions.resources or {})["pgque"]
    with resource.client() as client, client.transaction() as connection:
        found = connection.execute("select queue_name, queue_retention::text from pgque.queue")
        assert dict(found.fetchall()) == {"orders": "7 days", "returns": None}


def test_the_demo_is_right_in_every_component() -> None:
    """`dg check yaml` looks only at the last of several components of a type."""
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
    assert len(components) == 2


def test_dagster_finds_no_components_where_spark_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "QueueComponent" in dir(pgque_dagster)

    monkeypatch.setattr(pgque_dagster, "find_spec", lambda package: None)

    assert "QueueComponent" not in dir(pgque_dagster)


def test_a_replica_names_its_target(project: DgProject) -> None:
    head = (
        "type: pgque_dagster.TableReplicaComponent\nattributes:\n  name: shop\n"
        "  tables: [public.t]\n  target:\n    type: postgres\n"
    )
    project.write("pgque", "type: pgque_dagster.PgqueComponent\n")
    project.write("shop", f"{head}    schema: copies\n    deletes: history\n")
    replicas = project.load().resolve_assets_def(["shop", "public", "t"])
    (spec,) = replicas.specs
    assert "postgres" in spec.kinds
    schema = pgque_dagster.TableReplicaComponent.get_model_cls().model_json_schema()
    written = yaml.safe_load(f"{head}    schema: copies\n    deletes: history\n")
    Draft202012Validator(schema).validate(written["attributes"])
    project.write("bank", head)
    with pytest.raises(Exception, match="defs") as raised:
        project.load()
    assert "name the schema of the replicas" in str(raised.value.__cause__)


@pytest.mark.filterwarnings("error:Pydantic serializer warnings")
def test_names_of_tables_may_be_patterns_and_tables_lack_columns(
    project: DgProject, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database_url) as db:
        db.execute(
            "create schema billing; create table billing.a_1 (id int primary key);"
            'create table billing."A2" (id int primary key) partition by range (id);'
            'create table billing.part partition of billing."A2" default;'
            "create view billing.seen as select 1;"
            "create unlogged table billing.u (id int primary key);"
            "create table billing.ab1 (id int primary key); create table other (id int);"
            "create table billing.keyless (id int);"
            'create table billing."a.b" (id int primary key)'
        )
    project.write("pgque", "type: pgque_dagster.PgqueComponent\n")

    def keys(tables: str) -> set[str]:
        project.write(
            "shop",
            "type: pgque_dagster.TableReplicaComponent\nattributes:\n  name: shop\n"
            f"  tables: {tables}\n  url: {database_url}\n"
            "  target: {type: iceberg, warehouse: lake}\n",
        )
        project.run("utils", "refresh-defs-state")
        definitions = project.load()
        checks = [key.name for each in definitions.asset_checks or () for key in each.check_keys]
        assert "wildcard_tables" in checks
        found = definitions.resolve_all_asset_specs()
        return {".".join(x.key.path[1:]) for x in found if "iceberg" in x.kinds}

    with caplog.at_level("ERROR"):
        assert keys("['billing.*']") == {"billing.a_1", "billing.A2", "billing.ab1"}
    logged = "\n".join(caplog.messages)
    assert "billing.keyless is left out: table billing.keyless has no key" in logged
    assert 'billing."a.b" is left out' in logged
    assert "table billing.u could differ from it unseen, because it is unlogged" in logged
