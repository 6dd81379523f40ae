"""Measures the time from send to ack by the sensor: `make bench-latency`.

In the project, Spark parses and sums up ten events at a time. Warm processes and Dagster's default
launcher are measured, each with Spark in the runs and with sessions of a Spark Connect server, and
with eight consumers that get the same events at once. A figure is relative to the time that a
process takes to start Spark alone, because machines differ. The memory is the most that Dagster
and its runs, the JVMs and Spark's Python workers held at once, without shared memory.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import dagster as dg
import psutil
import psycopg

from benchmarks.measure import Result, to_markdown
from benchmarks.project import daemon, write_project
from harness.leftovers import end_with_this_process
from harness.ticking import ticking
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from tests.support.spark.clusters import connect_server

_EVENTS = 10
_PATIENCE = 600.0
_EVALUATION_SECONDS = 5.0
_CONSUMERS = 8

_PROJECT = """
import json, os
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset

def revenue(number: int) -> dg.AssetsDefinition:
    @pgque_asset(queue="orders", name=f"revenue_{number}")
    def computed(context: dg.AssetExecutionContext, batch: SparkBatch) -> None:
        rows = batch.payload("total double not null").groupBy().sum("total").collect()
        context.log.info(str(rows))

    return computed

assets = [revenue(number) for number in range(int(os.environ["CONSUMERS"]))]
defs = dg.Definitions(
    assets=assets,
    sensors=[build_pgque_sensor(assets, default_status=dg.DefaultSensorStatus.RUNNING)],
    resources={
        "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL"), deployment="benchmark"),
        "pyspark": LazyPySparkResource(spark_config=json.loads(os.environ["SPARK_CONFIG"])),
    },
)
"""

_PARTS = _PYTHON, _JVM, _WORKERS = "Dagster and runs", "JVM", "Spark's Python"

_LOCAL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

# The minimum for a run that starts its own Spark.
_BARE_SPARK = """
import json, os
from pyspark.sql import SparkSession
builder = SparkSession.builder
for name, value in json.loads(os.environ["SPARK_CONFIG"]).items():
    builder = builder.config(name, value)
events = builder.getOrCreate().createDataFrame([('{"total": 1.5}',)] * 10, "payload string")
totals = events.selectExpr("from_json(payload, 'total double').total as total")
totals.groupBy().sum("total").collect()
"""

# As docs/latency.md recommends.
QUICK_QUEUE = """
run_coordinator:
  module: pgque_dagster.launcher
  class: QuickRunCoordinator
concurrency:
  runs:
    tag_concurrency_limits:
      - key: pgque/queue
        limit: 2
"""
WARM = """
run_launcher:
  module: pgque_dagster.launcher
  class: WarmRunLauncher
"""

_SEND = """
select pgque.send_batch('orders', array_fill('{"total": 1.5}'::text, array[%s])),
    pg_current_xact_id()::text
"""
# Not by the ids of events: a tick that leaves events behind already counts their ids.
_FINISHED = """
select count(*) filter (where pg_visible_in_snapshot(%s::xid8, t.tick_snapshot)), count(*)
from pgque.subscription s
join pgque.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
"""


def measure(rounds: int) -> Iterator[Result]:
    """Yields the latencies as they are measured."""
    with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
        project = Path(folder)
        write_project(project, _PROJECT)
        with EmbeddedPostgres(project / "postgres") as server, _queue(server.url):
            sensor = partial(
                _latencies,
                url=server.url,
                project=project,
                rounds=rounds,
                warm_up=2,
                pause=_EVALUATION_SECONDS,
            )
            bare = _bare_spark()
            yield bare
            sensor = partial(sensor, bare=bare.figure)
            launchers = {
                "warm processes": (0.1, WARM + QUICK_QUEUE),
                "default launcher": (0.4, QUICK_QUEUE),
            }
            for name, (target, settings) in launchers.items():
                yield from sensor(f"sensor, {name}", target, settings=settings)
            with _consumers(server.url, _CONSUMERS):
                yield from sensor(
                    f"sensor, warm processes, {_CONSUMERS} consumers",
                    0.2,
                    settings=WARM + QUICK_QUEUE,
                    consumers=_CONSUMERS,
                )
            with connect_server(project) as spark:
                for name, (target, settings) in launchers.items():
                    yield from sensor(
                        f"sensor, {name}, Spark Connect", target, settings=settings, spark=spark
                    )


def _bare_spark(rounds: int = 5) -> Result:
    """Returns the time of a Python process that starts Spark and runs one query."""
    environment = {**os.environ, "SPARK_CONFIG": json.dumps(_LOCAL)}
    seconds = []
    for _ in range(rounds):
        start = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", _BARE_SPARK], env=environment, capture_output=True, check=True
        )
        seconds.append(time.monotonic() - start)
    return Result(
        "Spark alone: start, session and first query (s)",
        "",
        statistics.median(seconds),
        "<=",
        None,
        f"{rounds} processes",
    )


@contextmanager
def _queue(url: str) -> Iterator[None]:
    """Creates the queue, and ticks it while the block runs."""
    installer.install(url)
    with Client(url) as client:
        client.create_queue("orders", ticker_max_lag="0")
    with ticking(url), _consumers(url, 1):
        yield


@contextmanager
def _consumers(url: str, count: int) -> Iterator[None]:
    """Gives the queue this many consumers while the block runs, and one afterwards."""
    with Client(url) as client:
        for number in range(count):
            client.register_consumer("orders", f"revenue_{number}")
        yield
        for number in range(1, count):
            client.unregister_consumer("orders", f"revenue_{number}", skip=True)


def _latencies(
    name: str,
    target: float,
    *,
    bare: float,
    url: str,
    project: Path,
    rounds: int,
    warm_up: int,
    pause: float,
    settings: str = "",
    spark: str | None = None,
    consumers: int = 1,
) -> list[Result]:
    home = Path(tempfile.mkdtemp(prefix="home-", dir=project))
    (home / "dagster.yaml").write_text(f"telemetry:\n  enabled: false\n{settings}")
    environment = {
        "PGQUE_URL": url,
        "SPARK_CONFIG": json.dumps(_LOCAL if spark is None else {"spark.remote": spark}),
        "CONSUMERS": str(consumers),
    }
    seconds, sent, memory = [], [], dict.fromkeys(_PARTS, 0.0)
    with daemon(project, home, environment) as session:
        for number in range(warm_up + rounds):
            sent.append(time.time())
            taken = _one_batch(url)
            for part, megabytes in _memory(session).items():
                memory[part] = max(memory[part], megabytes)
            if number >= warm_up:
                seconds += taken
            # Makes events come at any time between two evaluations of the sensor.
            time.sleep(random.uniform(0, pause))
        parts = _parts(home, sent[warm_up:], seconds) if consumers == 1 else {}
    return [
        Result(
            f"event to ack by the {name}, p{rank}",
            "Spark's own start",
            _percentile(seconds, rank) / bare,
            "<=",
            target if rank == 50 else None,
            f"{_percentile(seconds, rank):.2f} s; {len(seconds)} batches of {_EVENTS} events; "
            + ", ".join(f"{part} {megabytes:.0f} MB" for part, megabytes in memory.items()),
        )
        for rank in (50, 90)
    ] + [
        Result(f"of it, {part}", "Spark's own start", took / bare, "<=", None, f"{took:.2f} s")
        for part, took in parts.items()
    ]


def _parts(home: Path, sent: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    """Returns the medians of the parts of the time from send to ack, in seconds.

    Args:
        home: the instance's, which has started one run for each batch.
        sent: when the events of each batch were sent, by the clock.
        seconds: the time until the ack of each.
    """
    parts: dict[str, list[float]] = {}
    with dg.DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_run_records(limit=len(sent))
        for record, start, taken in zip(reversed(runs), sent, seconds, strict=True):
            events = {
                each.dagster_event.event_type: each.timestamp
                for each in reversed(instance.all_logs(record.dagster_run.run_id))
                if each.dagster_event is not None
            }
            points = {
                "tick and evaluation": record.create_timestamp.timestamp(),
                "queue of runs": events[dg.DagsterEventType.RUN_STARTING],
                "process and plan": events[dg.DagsterEventType.STEP_START],
                "claim, Spark, store and ack": start + taken,
            }
            for (part, end), begin in zip(points.items(), (start, *points.values()), strict=False):
                parts.setdefault(part, []).append(end - begin)
    return {part: statistics.median(times) for part, times in parts.items()}


def _memory(session: int) -> dict[str, float]:
    """Returns the memory of Dagster, the Connect server and their children, in MB, by part."""
    found = dict.fromkeys(_PARTS, 0.0)
    servers = [child for child in psutil.Process().children() if child.name() == "java"]
    for root in (psutil.Process(session), *servers):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                found[_part(process)] += process.memory_full_info().pss / 2**20
    return found


def _part(process: psutil.Process) -> str:
    if process.name() == "java":
        return _JVM
    return _WORKERS if "pyspark.daemon" in process.cmdline() else _PYTHON


def _percentile(values: Sequence[float], rank: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[rank - 1]


def _one_batch(url: str) -> list[float]:
    """Sends events and returns the seconds until each consumer acked them."""
    with psycopg.connect(url, autocommit=True) as connection:
        start = time.monotonic()
        (_, transaction) = connection.execute(_SEND, [_EVENTS]).fetchone() or (None, None)
        seconds: list[float] = []
        while True:
            acked, all_ = connection.execute(_FINISHED, [transaction]).fetchone() or (0, 0)
            seconds += [time.monotonic() - start] * (acked - len(seconds))
            if acked == all_:
                return seconds
            if time.monotonic() - start > _PATIENCE:
                raise TimeoutError("the events are not acked")
            time.sleep(0.01)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    results = []
    for result in measure(options.rounds):
        print(f"{result.what}: {result.figure:.2f}", file=sys.stderr)
        results.append(result)
    print(to_markdown(results))


if __name__ == "__main__":
    end_with_this_process()
    main()
