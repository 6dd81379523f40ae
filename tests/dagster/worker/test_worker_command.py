"""The command `pgque worker`: what it loads, what it refuses, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.worker.command import refuse_values_in_memory, select_consumers
from tests.dagster.worker.states import PATIENCE, eventually, is_consumed, statuses
from tests.support.events import publish


@pytest.fixture
def project(tmp_path: Path, client: Client) -> tuple[Path, dict[str, str]]:
    """A user's project, with the environment in which to start the worker."""
    (tmp_path / "shop.py").write_text(
        "import dagster as dg\n"
        "from dagster_pyspark import LazyPySparkResource\n"
        "from pgque_dagster import PgqueResource, SparkBatch, pgque_asset\n"
        '@pgque_asset(queue="orders")\n'
        "def revenue(batch: SparkBatch) -> None:\n"
        "    print('counted', batch.events().count())\n"
        "defs = dg.Definitions(assets=[revenue], resources={\n"
        '    "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),\n'
        '    "pyspark": LazyPySparkResource(spark_config={"spark.master": "local[1]",\n'
        '        "spark.ui.enabled": "false"}),\n'
        "})\n"
    )
    (tmp_path / "home").mkdir()
    environment = {
        **os.environ,
        "PGQUE_URL": client.url,
        "DAGSTER_HOME": str(tmp_path / "home"),
        "PYSPARK_PYTHON": sys.executable,
    }
    return tmp_path, environment


def worker_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pgque_dagster.cli", "worker", *arguments]


def test_the_command_serves_a_project_until_it_is_told_to_end(
    client: Client, project: tuple[Path, dict[str, str]]
) -> None:
    folder, environment = project
    publish(client, ["a"])
    with subprocess.Popen(
        worker_command("-m", "shop", "--poll", "0.5"),
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            eventually(lambda: is_consumed(client), "the batch is acked")
        finally:
            process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0
    assert "serving orders/revenue" in messages
    with dg.DagsterInstance.local_temp(str(folder / "home")) as instance:
        assert statuses(instance) == ["SUCCESS"]


def test_the_worker_serves_once_spark_is_there(
    project: tuple[Path, dict[str, str]],
) -> None:
    folder, environment = project
    shop = (folder / "shop.py").read_text()
    (folder / "shop.py").write_text(
        shop.replace("import dagster as dg\n", _NOISY_SPARK).replace(
            "LazyPySparkResource(", "Noisy("
        )
    )
    with subprocess.Popen(
        worker_command("-m", "shop"),
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        messages = []
        for line in process.stderr:
            messages.append(line.strip())
            if line.startswith("serving"):
                break
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE)

    own = [line for line in messages if line in ("a session is there", "pgque: starting Spark ...")]
    assert own == ["pgque: starting Spark ...", "a session is there"]
    assert process.returncode == 0, rest


_NOISY_SPARK = """
import sys
import time
import dagster as dg
from dagster_pyspark import LazyPySparkResource as Lazy
class Noisy(Lazy):
    @property
    def spark_session(self):
        time.sleep(2)
        session = super().spark_session
        print("a session is there", file=sys.stderr, flush=True)
        return session
"""


def test_spark_that_does_not_start_ends_the_worker_with_its_reason(
    project: tuple[Path, dict[str, str]],
) -> None:
    folder, environment = project

    ended = subprocess.run(
        worker_command("-m", "shop"),
        cwd=folder,
        env={**environment, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert ended.returncode == 1
    assert "Error: Spark does not start: /nowhere/bin/java does not run" in ended.stderr
    assert "serving" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "nosuch"], "module nosuch cannot be loaded"),
        (["-m", "shop", "-a", "other"], "has no attribute other"),
        (["-m", "shop", "-a", "dg"], "is not a dagster.Definitions"),
        (["-m", "shop", "-c", "orders/nobody"], "no asset consumes orders/nobody"),
    ],
)
def test_the_command_says_what_is_wrong(
    project: tuple[Path, dict[str, str]], arguments: list[str], message: str
) -> None:
    folder, environment = project

    ended = subprocess.run(
        worker_command(*arguments), cwd=folder, env=environment, capture_output=True, text=True
    )

    assert ended.returncode == 1
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_several_batches_at_a_time_of_a_consumer_with_slots_are_refused(
    project: tuple[Path, dict[str, str]],
) -> None:
    folder, environment = project
    shop = folder / "shop.py"
    shop.write_text(shop.read_text().replace('queue="orders"', 'queue="orders", partitions=8'))

    ended = subprocess.run(
        worker_command("-m", "shop", "--parallel-runs", "2"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 1
    assert "parallel_runs is 2: leave it out" in ended.stderr
    assert "orders/revenue has partitions=8" in ended.stderr


_SHOP = """
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import PgqueResource, SparkBatch, pgque_asset, pgque_multi_asset

{asset}

resources = {{
    "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
    "pyspark": LazyPySparkResource(spark_config={{"spark.master": "local[1]",
        "spark.ui.enabled": "false"}}),
    {resources}
}}
defs = dg.Definitions(assets=[{name}], resources=resources)
"""
_RETURNS = """
@pgque_asset(queue="orders")
def revenue(batch: SparkBatch):
    return batch.events().count()
"""
_RETURNS_BY_KEY = _RETURNS.replace('"orders"', '"orders", io_manager_key="lake"')
_RETURNS_TWO = """
@pgque_multi_asset(queue="orders", outs={"counts": dg.AssetOut(), "totals": dg.AssetOut()})
def revenue(batch: SparkBatch):
    return 1, 2
"""


def definitions_of(asset: str, resources: str) -> dg.Definitions:
    namespace: dict[str, Any] = {}
    exec(_SHOP.format(asset=asset, name="revenue", resources=resources), namespace)
    found: dg.Definitions = namespace["defs"]
    return found


@pytest.mark.parametrize(
    ("asset", "resources", "message"),
    [
        (_RETURNS, "", "asset revenue (resource 'io_manager')"),
        (_RETURNS, '"io_manager": dg.mem_io_manager', "asset revenue (resource 'io_manager')"),
        (_RETURNS, '"io_manager": dg.InMemoryIOManager()', "asset revenue (resource 'io_manager')"),
        (_RETURNS_BY_KEY, '"lake": dg.InMemoryIOManager()', "asset revenue (resource 'lake')"),
        (_RETURNS_TWO, "", "asset totals (resource 'io_manager')"),
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


def test_the_command_does_not_begin_with_an_asset_whose_values_it_would_lose(
    client: Client, project: tuple[Path, dict[str, str]]
) -> None:
    folder, environment = project
    (folder / "shop.py").write_text(_SHOP.format(asset=_RETURNS, name="revenue", resources=""))
    publish(client, ["a"])

    ended = subprocess.run(
        worker_command("-m", "shop"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert ended.returncode == 1
    assert "asset revenue (resource 'io_manager')" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not is_consumed(client)


_STORES_ITSELF = """
@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> {returned}:
    batch.events().count()
"""
_STORES_ALL_ITSELF = """
@pgque_multi_asset(queue="orders", specs=[dg.AssetSpec("counts"), dg.AssetSpec("totals")])
def revenue(batch: SparkBatch):
    batch.events().count()
"""
_HAS_ITS_OWN = """
@pgque_asset(queue="orders", io_manager_def=dg.FilesystemIOManager(base_dir="out"))
def revenue(batch: SparkBatch):
    return batch.events().count()
"""


@pytest.mark.parametrize(
    ("asset", "resources"),
    [
        (_STORES_ITSELF.format(returned="None"), ""),
        (_STORES_ITSELF.format(returned='"None"'), ""),
        (_STORES_ITSELF.format(returned="dg.MaterializeResult"), ""),
        (_STORES_ALL_ITSELF, ""),
        (_HAS_ITS_OWN, ""),
        (_RETURNS, '"io_manager": dg.FilesystemIOManager(base_dir="out")'),
        (_RETURNS, '"io_manager": dg.fs_io_manager'),
    ],
)
def test_an_asset_whose_values_are_stored_or_that_stores_itself_is_served(
    asset: str, resources: str
) -> None:
    definitions = definitions_of(asset, resources)

    refuse_values_in_memory(definitions, select_consumers(definitions, []))
