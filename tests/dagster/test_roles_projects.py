"""The project of docs/start.md, run by a login that has pgque_reader and nothing else."""

import re
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import ParquetSink
from tests.dagster.support import SessionHolder
from tests.support.events import tick
from tests.support.logins import as_login

ROOT = Path(__file__).parent.parent.parent
LOGIN = "the URL of the login"


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> dg.Definitions:
    """The project, which may install nothing."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/start.md").read_text(), re.DOTALL)
    (text,) = (each for each in blocks if "def revenue" in each)
    made: dict[str, dg.Definitions] = {}
    # An absolute folder, because Spark resolves relative ones from where the tests started it.
    text = text.replace('base_dir="output"', f"base_dir={str(tmp_path)!r}")
    # A reader may not tick.
    text = text.replace(', ticking="sensor"', f', install="never", url={LOGIN}')
    exec(text.replace(LOGIN, repr(as_login(database_url, "pgque_reader"))), made)
    return made["defs"]


def test_a_reader_runs_the_project_from_sensor_to_ack(
    project: dg.Definitions,
    client: Client,
    spark: SparkSession,
    instance: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    with Client(as_login(client.url, "pgque_writer")) as producer:
        producer.send("orders", {"product": "tea", "total": 4.5})
    tick(client)
    resources = {**(project.resources or {}), "pyspark": SessionHolder(spark)}
    definitions = dg.Definitions(
        assets=project.assets, sensors=project.sensors, resources=resources
    )

    context = dg.build_sensor_context(instance=instance, resources={"pgque": resources["pgque"]})
    data = definitions.resolve_sensor_def("pgque_sensor").evaluate_tick(context)
    assert data.run_requests, data.skip_message
    (request,) = data.run_requests
    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey("revenue")], tags=request.tags
    )

    assert run.success
    assert client.next_batch("orders", "revenue") is None
    (stored,) = ParquetSink(tmp_path / "revenue").read(spark).collect()
    assert (stored["product"], stored["sum(total)"]) == ("tea", 4.5)
