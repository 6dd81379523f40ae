"""Measures the time from send to ack by the worker and by the sensor: `make bench-worker`.

Both run the same project, in which Spark parses and sums up ten events at a time.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.measure import Result, to_markdown
from pgque_dagster import installer
from pgque_dagster.client import Client, Ticker
from pgque_dagster.embedded import EmbeddedPostgres

_EVENTS = 10
_PATIENCE = 180.0

_PROJECT = """
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset

@pgque_asset(queue="orders")
def revenue(context: dg.AssetExecutionContext, batch: SparkBatch) -> None:
    rows = batch.payload("total double not null").groupBy().sum("total").collect()
    context.log.info(str(rows))

defs = dg.Definitions(
    assets=[revenue],
    sensors=[build_pgque_sensor([revenue], default_status=dg.DefaultSensorStatus.RUNNING)],
    executor=dg.in_process_executor,
    resources={
        "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
        "pyspark": LazyPySparkResource(spark_config={
            "spark.master": "local[2]", "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2"}),
    },
)
"""

_FINISHED = """
select t.tick_event_seq >= %s
from pgque.subscription s
join pgque.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
"""


def measure(worker_rounds: int, sensor_rounds: int) -> Iterator[Result]:
    """Yields the latencies of both as they are measured."""
    with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
        project = Path(folder)
        (project / "shop.py").write_text(_PROJECT)
        (project / "workspace.yaml").write_text("load_from:\n  - python_module: shop\n")
        with EmbeddedPostgres(project / "postgres") as server, _ticking(server.url):
            yield from _latencies(
                "worker", 1.5, server.url, project, _worker(), rounds=worker_rounds, warm_up=5
            )
            yield from _latencies(
                "sensor", None, server.url, project, _daemon(), rounds=sensor_rounds, warm_up=1
            )


def _worker() -> list[str]:
    return [sys.executable, "-m", "pgque_dagster.cli", "worker", "-m", "shop"]


def _daemon() -> list[str]:
    return [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", "workspace.yaml"]


@contextmanager
def _ticking(url: str) -> Iterator[None]:
    installer.install(url)
    with Client(url) as client:
        client.create_queue("orders", ticker_max_lag="0")
        client.register_consumer("orders", "revenue")
    ticker = Ticker(url)
    thread = threading.Thread(target=ticker.run)
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join()


def _latencies(
    name: str,
    target: float | None,
    url: str,
    project: Path,
    command: Sequence[str],
    *,
    rounds: int,
    warm_up: int,
) -> list[Result]:
    home = project / f"home-{name}"
    home.mkdir()
    environment = {
        **os.environ,
        "PGQUE_URL": url,
        "DAGSTER_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
    }
    with _serving(command, project, environment, home / "log"):
        seconds = [_one_batch(url) for _ in range(warm_up + rounds)][warm_up:]
    return [
        Result(
            f"event to ack by the {name}, p{rank} (s)",
            "",
            _percentile(seconds, rank),
            "<=",
            target if rank == 50 else None,
            f"{len(seconds)} batches of {_EVENTS} events",
        )
        for rank in (50, 90)
    ]


def _percentile(values: Sequence[float], rank: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[rank - 1]


@contextmanager
def _serving(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        except TimeoutError:
            sys.stderr.write(log.read_text()[-4000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _one_batch(url: str) -> float:
    """Sends events and returns the seconds until they are acked."""
    with Client(url) as client, psycopg.connect(url, autocommit=True) as connection:
        start = time.monotonic()
        ids = client.send_batch("orders", ['{"total": 1.5}'] * _EVENTS)
        while connection.execute(_FINISHED, [max(ids)]).fetchone() != (True,):
            if time.monotonic() - start > _PATIENCE:
                raise TimeoutError("the events are not acked")
            time.sleep(0.01)
        seconds = time.monotonic() - start
    # So that sends do not synchronize with the sensor's evaluations.
    time.sleep(0.37)
    return seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker-rounds", type=int, default=40)
    parser.add_argument("--sensor-rounds", type=int, default=12)
    options = parser.parse_args()
    results = []
    for result in measure(options.worker_rounds, options.sensor_rounds):
        print(f"{result.what}: {result.figure:.2f}", file=sys.stderr)
        results.append(result)
    print(to_markdown(results))


if __name__ == "__main__":
    main()
