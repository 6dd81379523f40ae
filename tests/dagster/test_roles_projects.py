"""The projects of the docs, run by a login that has pgque_reader and nothing else."""

import re
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import DeltaSink, ParquetSink
from tests.dagster.support import SessionHolder
from tests.support.dagster.dg_project import DgProject
from tests.support.queues.events import tick
from tests.support.servers.logins import as_login

ROOT = Path(__file__).parent.parent.parent
LOGIN = "the URL of the login"


def block(page: str, language: str, word: str) -> str:
    """The block of a page that has a word."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (only,) = (each for each in found if word in each)
    return str(only)


@pytest.fixture
def in_python(tmp_path: Path, database_url: str) -> dg.Definitions:
    """The project of docs/start.md, which may install nothing."""
    made: dict[str, dg.Definitions] = {}
    # An absolute folder, because Spark resolves relative ones from where the tests started it.
    text = block("start.md", "python", "def revenue")
    text = text.replace('base_dir="output"', f"base_dir={str(tmp_path / 'output')!r}")
    # A reader may not tick.
    text = text.replace(', ticking="sensor"', f', install="never", url={LOGIN}')
    exec(text.replace(LOGIN, repr(as_login(database_url, "pgque_reader"))), made)
    return made["defs"]


@pytest.fixture
def in_yaml(
    project: DgProject, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> dg.Definitions:
    """The consumer of docs/components.md, in a project that may install nothing."""
    monkeypatch.setenv("PGQUE_URL", as_login(database_url, "pgque_reader"))
    database = block("components.md", "yaml", "requirements:")
    project.write("pgque", database.replace("attributes:", "attributes:\n  install: never"))
    (project.defs / "pgque" / "alerts.py").write_text("to_slack = print\n")
    project.write("orders", "type: pgque_dagster.QueueComponent\nattributes:\n  queue: orders\n")
    project.write("revenue", block("components.md", "yaml", "transform:"))
    transform = block("components.md", "python", "def revenue")
    (project.defs / "revenue" / "transform.py").write_text(transform)
    return project.load()


@pytest.mark.parametrize(
    ("kind", "sensor"), [("in_python", "pgque_sensor"), ("in_yaml", "revenue_sensor")]
)
def test_a_reader_runs_a_project_from_sensor_to_ack(
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    sensor: str,
) -> None:
    with Client(as_login(client.url, "pgque_writer")) as producer:
        producer.send("orders", {"product": "tea", "total": 4.5})
    tick(client)
    made: dg.Definitions = request.getfixturevalue(kind)
    resources = {**(made.resources or {}), "pyspark": SessionHolder(spark)}
    definitions = dg.Definitions(assets=made.assets, sensors=made.sensors, resources=resources)

    context = dg.build_sensor_context(instance=instance, resources={"pgque": resources["pgque"]})
    data = definitions.resolve_sensor_def(sensor).evaluate_tick(context)
    assert data.run_requests, data.skip_message
    (wanted,) = data.run_requests
    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey("revenue")], tags=wanted.tags
    )

    assert run.success
    assert client.next_batch("orders", "revenue") is None
    output = tmp_path / "output" / "revenue"
    sink = DeltaSink(str(output)) if kind == "in_python" else ParquetSink(output)
    (stored,) = sink.read(spark).drop("batch_id").collect()
    assert tuple(stored) == ("tea", 4.5)
