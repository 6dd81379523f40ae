"""The projects of the docs, run by a login that has pgque_reader and nothing else."""

import re
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import ParquetSink
from tests.dagster.support import SessionHolder
from tests.support.dg_project import DgProject
from tests.support.events import tick
from tests.support.logins import as_login

ROOT = Path(__file__).parent.parent.parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    """The consumer in docs/components.md, in a project that may install nothing."""
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    (consumer,) = (each for each in blocks("docs/components.md", "yaml") if "transform:" in each)
    (database,) = (each for each in blocks("docs/components.md", "yaml") if "requirements:" in each)
    (transform,) = (
        each for each in blocks("docs/components.md", "python") if "def revenue" in each
    )
    project.write("pgque", database.replace("attributes:", "attributes:\n  install: never"))
    (project.defs / "pgque" / "alerts.py").write_text("to_slack = print\n")
    project.write("orders", "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n")
    project.write("revenue", consumer)
    (project.defs / "revenue" / "transform.py").write_text(transform)
    return project


@pytest.fixture
def python_project(tmp_path: Path, database_url: str) -> dg.Definitions:
    """The project in docs/start.md, which also may install nothing."""
    (text,) = (each for each in blocks("docs/start.md", "python") if "def revenue" in each)
    made: dict[str, dg.Definitions] = {}
    # An absolute folder, because Spark resolves relative ones from where the tests started it.
    text = text.replace('base_dir="output"', f"base_dir={str(tmp_path)!r}")
    # A reader may not tick.
    text = text.replace(', ticking="sensor"', f', install="never", url={LOGIN}')
    exec(text.replace(LOGIN, repr(as_login(database_url, "pgque_reader"))), made)
    return made["defs"]


LOGIN = "the URL of the login"


def send_an_order(client: Client) -> None:
    with Client(as_login(client.url, "pgque_writer")) as producer:
        producer.send("orders", {"product": "tea", "total": 4.5})
    tick(client)


def sensor_context(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> dg.SensorEvaluationContext:
    resources = {"pgque": (definitions.resources or {})["pgque"]}
    return dg.build_sensor_context(instance=instance, resources=resources)


def consume(
    definitions: dg.Definitions, sensor: str, instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    """Evaluates the sensor and executes the runs that it requests."""
    context = sensor_context(definitions, instance)
    data = definitions.resolve_sensor_def(sensor).evaluate_tick(context)
    assert data.run_requests, data.skip_message
    (request,) = data.run_requests
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey("revenue")], tags=request.tags
    )


def test_a_reader_runs_the_project_in_yaml_from_sensor_to_ack_with_its_checks(
    project: DgProject,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_an_order(client)
    monkeypatch.setenv("PGQUE_URL", as_login(client.url, "pgque_reader"))
    definitions = project.load()

    run = consume(definitions, "revenue_sensor", instance)
    checks = definitions.resolve_job_def("orders_checks").execute_in_process(instance=instance)
    observed = definitions.resolve_sensor_def("orders_observation").evaluate_tick(
        sensor_context(definitions, instance)
    )

    assert run.success
    assert client.next_batch("orders", "revenue") is None
    (stored,) = ParquetSink(f"{project.folder}/output/revenue").read(spark).collect()
    assert (stored["product"], stored["sum(total)"]) == ("tea", 4.5)
    assert {result.check_name for result in checks.get_asset_check_evaluations()} >= {
        "dead_letters",
        "ticker_running",
    }
    assert {event.asset_key.path[-1] for event in observed.asset_events} == {
        "orders_queue",
        "orders_dlq",
    }


def test_a_reader_runs_the_project_in_python_from_sensor_to_ack(
    python_project: dg.Definitions,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
) -> None:
    send_an_order(client)
    definitions = dg.Definitions(
        assets=python_project.assets,
        sensors=python_project.sensors,
        resources={**(python_project.resources or {}), "pyspark": SessionHolder(spark)},
    )

    run = consume(definitions, "pgque_sensor", instance)

    assert run.success
    assert client.next_batch("orders", "revenue") is None
