"""Starts Spark clusters as separate processes, with PySpark's own programs."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}
PATIENCE_SECONDS = 900
ROOT = Path(__file__).parents[3]

_SPARK_HOME = Path(pyspark.__file__).parent
# Spark runs a task a second time only on another host.
_WORKERS = ("127.0.0.2", "127.0.0.3")


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """URL of a master with two workers of one core each, registered under two host names."""
    spark_class = str(_SPARK_HOME / "bin" / "spark-class")
    with ExitStack() as daemons:
        started = daemons.enter_context(
            daemon(
                folder / "master.log",
                r"Starting Spark master at (spark://\S+)",
                *(spark_class, "org.apache.spark.deploy.master.Master"),
                *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
            )
        )
        url = started[1]
        for host in _WORKERS:
            daemons.enter_context(
                daemon(
                    folder / f"worker-{host}.log",
                    "Successfully registered with master",
                    *(spark_class, "org.apache.spark.deploy.worker.Worker", url),
                    *("--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(folder / f"work-{host}")),
                )
            )
        yield url


@contextmanager
def connect_server(
    folder: Path, conf: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """URL of a Spark Connect server with a local[2] behind it."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **(conf or {}),
    }
    with daemon(
        folder / "connect.log",
        r"Spark Connect server started at: \S*:(\d+)",
        *(str(_SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        env=env,
    ) as started:
        yield f"sc://127.0.0.1:{started[1]}"


@contextmanager
def daemon(
    log: Path, ready: str, *command: str, env: Mapping[str, str] | None = None
) -> Iterator[re.Match[str]]:
    """Runs a program until the end of the block; yields what its log says when it is ready."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env={**environment(), "SPARK_HOME": str(_SPARK_HOME), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield _wait_for(ready, log, process)
    finally:
        _kill(process)


@contextmanager
def driver(
    master: str,
    story: str,
    url: str,
    folder: Path,
    *,
    conf: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    module: str = "spark_cluster",
) -> Iterator["subprocess.Popen[str]"]:
    """Starts a scenario of `spark_cluster` in a process; kills it and its executors at the end."""
    with (folder / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", f"tests.programs.{module}"),
                *(master, json.dumps(conf or {}), story, url, str(folder)),
            ],
            cwd=folder,
            env={
                **environment(),
                "PYTHONPATH": str(ROOT),
                "SPARK_HOME": str(_spark_home(folder / "spark")),
                **(env or {}),
            },
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _kill(process)


def run_driver(master: str, story: str, url: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Runs a scenario and returns what it reports."""
    with driver(master, story, url, folder, **options) as process:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, (folder / "driver.log").read_text()[-5000:]
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


def _spark_home(folder: Path) -> Path:
    """The same Spark in a folder of its own, because a local cluster writes logs into it."""
    folder.mkdir()
    for entry in _SPARK_HOME.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


def environment() -> dict[str, str]:
    """Returns this process's environment without its variables for Python and Spark.

    SPARK_SUBMIT_OPTS stays: it makes a JVM start sooner.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHONPATH", "PYSPARK_", "SPARK_")) or name == "SPARK_SUBMIT_OPTS"
    }
    return {**kept, "PYSPARK_PYTHON": sys.executable}


def bare_environment(folder: Path, without: tuple[str, ...] = ("pgque",)) -> Path:
    """Makes a virtual environment without some of our packages; returns its site-packages."""
    venv.create(folder, symlinks=True)
    (site_packages,) = (folder / "lib").glob("python3*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not any(name in entry.name for name in without):
            (site_packages / entry.name).symlink_to(entry)
    return site_packages


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kills a process and all that it started, unless they are gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait_for(text: str, log: Path, process: "subprocess.Popen[str]") -> re.Match[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(text, log.read_text()):
            return found
        time.sleep(0.1)
    raise AssertionError(f"not ready: {log.read_text()[-3000:]}")
