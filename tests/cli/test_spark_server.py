"""`pgque spark-server`: a Spark Connect server that is watched."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, Refused, started
from tests.client.consumer.support import wait_until
from tests.support.events import publish
from tests.support.queues import PATIENCE_SECONDS

_SERVER_SECONDS = 300.0
_READ = """
import sys
from pyspark.sql import SparkSession
from pgque_dagster.spark import register

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
register(spark)
options = {"url_env": "PGQUE_SECRET_URL", "queue": "orders", "from_tick": 1, "to_tick": 2}
rows = spark.read.format("pgque").options(**options).load().collect()
print(*(row.ev_data for row in rows))
"""


@pytest.fixture
def spark(client: Client) -> Iterator["subprocess.Popen[str]"]:
    """A server that has the database of the client."""
    serve = ("spark-server", "--port", "0", "--master", "local[1]", "--url", client.url)
    with started(client.url, *serve) as process:
        yield process
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def jvm_of(process: subprocess.Popen[str]) -> int:
    """The process of Spark; the command has no other child."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def said(process: subprocess.Popen[str], words: str) -> None:
    """Waits until the command has said something."""
    assert process.stderr is not None
    assert any(words in line for line in process.stderr), f"it never said {words!r}"


def read_events(url: str) -> str:
    """What a session on the server reads from the queue."""
    return subprocess.run(
        [sys.executable, "-c", _READ, url],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_SERVER_SECONDS,
    ).stdout.strip()


def has_ended(process: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_a_server_reads_events_starts_again_after_it_died_and_ends_by_ctrl_c(
    spark: subprocess.Popen[str], client: Client
) -> None:
    publish(client, ["tea", "milk"])
    assert spark.stdout is not None
    url = spark.stdout.readline().strip()
    assert read_events(url) == "tea milk"

    os.kill(jvm_of(spark), signal.SIGKILL)
    said(spark, "ended with status -9. Starting it again in 1 s.")
    said(spark, "serving again")
    assert read_events(url) == "tea milk"

    jvm = jvm_of(spark)
    spark.send_signal(signal.SIGINT)
    assert spark.wait(PATIENCE_SECONDS) == 130
    wait_until(lambda: has_ended(jvm))


def test_a_server_that_cannot_start_says_what_spark_said(pgque: Pgque) -> None:
    result = pgque("spark-server", "--port", "0", "--master", "nowhere")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "before it served" in result.stderr
    assert "Master must either be yarn" in result.stderr


def test_a_port_that_is_in_use_is_refused(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        line = refused("spark-server", "--port", str(port))

    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert "--port" in line


def test_a_missing_java_is_named(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    line = refused("spark-server", "--port", "0")

    assert "Spark needs Java 17 or newer" in line


def test_a_spark_without_connect_is_named(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    line = refused("spark-server", "--port", "0")

    assert f"there is no spark-connect jar in {tmp_path / 'jars'}" in line
    assert "pip install 'pgque-dagster[connect]'" in line


def test_a_setting_without_a_value_is_refused(misused: Refused) -> None:
    wrong = misused("spark-server", "--conf", "spark.ui.enabled")
    assert "'spark.ui.enabled' is not KEY=VALUE" in wrong
