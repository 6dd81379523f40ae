"""The command `pgque worker`: what it loads, what it refuses, and how it ends."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
from click.testing import CliRunner

from pgque_dagster.client import Client
from pgque_dagster.worker.command import main, refuse_values_in_memory, select_consumers
from tests.support.events import publish

SHOP = """
import dagster as dg
import sys
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import PgqueResource, SparkBatch, pgque_asset, pgque_multi_asset

class Telling(LazyPySparkResource):
    @property
    def spark_session(self):
        session = super().spark_session
        print("a session is there", file=sys.stderr, flush=True)
        return session

{asset}

resources = {{
    "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
    "pyspark": Telling(spark_config={{"spark.master": "local[1]", "spark.ui.enabled": "false"}}),
    {resources}
}}
defs = dg.Definitions(assets=[revenue], resources=resources)
"""
STORES_ITSELF = """
@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> {returned}:
    print("counted", batch.events().count(), file=sys.stderr, flush=True)
"""
STORES_ALL_ITSELF = """
@pgque_multi_asset(queue="orders", specs=[dg.AssetSpec("counts"), dg.AssetSpec("totals")])
def revenue(batch: SparkBatch):
    batch.events().count()
"""
RETURNS = """
@pgque_asset(queue="orders")
def revenue(batch: SparkBatch):
    return batch.events().count()
"""
RETURNS_BY_KEY = RETURNS.replace('"orders"', '"orders", io_manager_key="lake"')
HAS_ITS_OWN = RETURNS.replace(
    '"orders"', '"orders", io_manager_def=dg.FilesystemIOManager(base_dir="out")'
)
RETURNS_TWO = """
@pgque_multi_asset(queue="orders", outs={"counts": dg.AssetOut(), "totals": dg.AssetOut()})
def revenue(batch: SparkBatch):
    return 1, 2
"""

WITHOUT_JAVA = """
from pyspark.errors import PySparkRuntimeError

class Telling(Telling):
    @property
    def spark_session(self):
        raise PySparkRuntimeError("the gateway exited")
""" + STORES_ITSELF.format(returned="None")


@pytest.fixture
def project(tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's project, with the environment in which to start the worker."""
    write(tmp_path, STORES_ITSELF.format(returned="None"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PGQUE_URL", client.url)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, asset: str) -> None:
    (folder / "shop.py").write_text(SHOP.format(asset=asset, resources=""))


def worker_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pgque_dagster.cli", "worker", *arguments]


def definitions_of(asset: str, resources: str) -> dg.Definitions:
    namespace: dict[str, Any] = {}
    exec(SHOP.format(asset=asset, resources=resources), namespace)
    found: dg.Definitions = namespace["defs"]
    return found


def test_the_command_serves_a_project_once_spark_is_there_until_it_is_told_to_end(
    client: Client, project: Path
) -> None:
    publish(client, ["a"])
    with subprocess.Popen(
        worker_command("-m", "shop", "--poll", "0.5"), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        messages = []
        for line in process.stderr:
            messages.append(line.strip())
            if line.startswith("counted"):
                process.send_signal(signal.SIGTERM)

    order = ["a session is there", "serving orders/revenue until Ctrl-C", "counted 1"]
    assert list(dict.fromkeys(line for line in messages if line in order)) == order
    assert process.returncode == 0
    assert client.lease_info("orders", "revenue") is None
    with dg.DagsterInstance.local_temp(str(project / "home")) as instance:
        assert [run.status.value for run in instance.get_runs()] == ["SUCCESS"]


@pytest.mark.parametrize(
    ("arguments", "asset", "messages"),
    [
        ("-m nosuch", None, ["module nosuch cannot be loaded"]),
        ("-m shop -a other", None, ["has no attribute other"]),
        ("-m shop -a dg", None, ["is not a dagster.Definitions"]),
        ("-m shop -c orders/nobody", None, ["no asset consumes orders/nobody"]),
        ("-m shop", RETURNS, ["asset revenue (resource 'io_manager')"]),
        (
            "-m shop --parallel-runs 2",
            RETURNS.replace('"orders"', '"orders", partitions=8'),
            ["parallel_runs is 2: leave it out", "orders/revenue has partitions=8"],
        ),
        ("-m shop", WITHOUT_JAVA, ["Error: Spark does not start: /nowhere/bin/java does not run"]),
    ],
)
def test_the_command_says_what_is_wrong_and_takes_no_batch(
    client: Client,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    asset: str | None,
    messages: list[str],
) -> None:
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    publish(client, ["a"])
    if asset is not None:
        write(project, asset)

    ended = CliRunner().invoke(main, arguments.split())

    assert (ended.exit_code, type(ended.exception)) == (1, SystemExit)
    for message in messages:
        assert message in ended.output
    assert "serving" not in ended.output
    (info,) = client.consumers("orders")
    assert (info.batch_id, info.pending_events) == (None, 1)


@pytest.mark.parametrize(
    ("asset", "resources", "message"),
    [
        (RETURNS, "", "asset revenue (resource 'io_manager')"),
        (RETURNS, '"io_manager": dg.mem_io_manager', "asset revenue (resource 'io_manager')"),
        (RETURNS, '"io_manager": dg.InMemoryIOManager()', "asset revenue (resource 'io_manager')"),
        (RETURNS_BY_KEY, '"lake": dg.InMemoryIOManager()', "asset revenue (resource 'lake')"),
        (RETURNS_TWO, "", "asset totals (resource 'io_manager')"),
    ],
)
def test_an_asset_whose_values_would_stay_in_memory_is_refused_by_name(
    asset: str, resources: str, message: str
) -> None:
    definitions = definitions_of(asset, resources)

    with pytest.raises(click.ClickException) as refused:
        refuse_values_in_memory(definitions, select_consumers(definitions, []))

    assert message in refused.value.message
    assert "ParquetBatchIOManager" in refused.value.message


@pytest.mark.parametrize(
    ("asset", "resources"),
    [
        (STORES_ITSELF.format(returned="None"), ""),
        (STORES_ITSELF.format(returned='"None"'), ""),
        (STORES_ITSELF.format(returned="dg.MaterializeResult"), ""),
        (STORES_ALL_ITSELF, ""),
        (HAS_ITS_OWN, ""),
        (RETURNS, '"io_manager": dg.FilesystemIOManager(base_dir="out")'),
        (RETURNS, '"io_manager": dg.fs_io_manager'),
    ],
)
def test_an_asset_whose_values_are_stored_or_that_stores_itself_is_served(
    asset: str, resources: str
) -> None:
    definitions = definitions_of(asset, resources)

    refuse_values_in_memory(definitions, select_consumers(definitions, []))
