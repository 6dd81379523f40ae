"""Measures how fast Dagster's daemon and Spark process a backlog: `make bench-drain`.

The sensor and everything else have their defaults. Prints a Markdown table, and how the runs spent
their time; `--write` puts both into docs/benchmarks.md.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil
import psycopg

from benchmarks.measure import Result, to_markdown, write_section
from benchmarks.project import daemon, write_project
from harness.leftovers import end_with_this_process
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres

_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_EVENTS_OF_A_TICK = 10_000
_PATIENCE = 1800.0
_MB = 2**20

_PROJECT = """
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame
from pgque_dagster import (
    ParquetBatchIOManager, PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
)

@pgque_asset(queue="orders")
def orders(batch: SparkBatch) -> DataFrame:
    return batch.payload("id bigint not null, customer bigint not null, total double")

defs = dg.Definitions(
    assets=[orders],
    sensors=[build_pgque_sensor([orders], default_status=dg.DefaultSensorStatus.RUNNING)],
    executor=dg.in_process_executor,
    resources={
        "pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")),
        "pyspark": LazyPySparkResource(spark_config={
            "spark.master": "local[2]", "spark.ui.enabled": "false"}),
        "io_manager": ParquetBatchIOManager(base_dir="output"),
    },
)
"""
_SEND = """
select cardinality(pgque.send_batch('orders', 'order', array(
    select format('{"id": %%s, "customer": %%s, "total": %%s.25, "note": "%%s"}',
                  x, x %% 1000, x %% 977, rpad('', 120, md5(x::text)))
    from generate_series(%s::integer, %s::integer) x)))
"""
_FINISHED = """
select t.tick_event_seq >= %s
from pgque.subscription s
join pgque.tick t on t.tick_queue = s.sub_queue and t.tick_id = s.sub_last_tick
"""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/benchmarks.md"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
        text = measure(Path(folder), options.events)
    print(text)
    if options.write:
        write_section(_REPORT, "drain", text)


def measure(project: Path, events: int) -> str:
    """Fills a queue, drains it, and returns the tables."""
    write_project(project, _PROJECT)
    home = project / "home"
    home.mkdir()
    with EmbeddedPostgres(project / "postgres") as server:
        last = fill(server.url, events)
        started = time.time()
        with (
            daemon(project, home, {"PGQUE_URL": server.url}) as pid,
            Memory(psutil.Process(pid)) as memory,
        ):
            _wait(server.url, last)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        runs = _runs(instance)
    first, end = runs[0]["created"], runs[-1]["acked"]
    results = [
        Result(
            f"drain {events:,} events into Parquet (events/s)",
            "",
            events / (end - first),
            ">=",
            200_000,
            f"{end - first:.1f} s from request to last ack; "
            f"{end - started:.1f} s with the daemon's start",
        ),
        Result("runs for it", "", len(runs), "<=", 10, ""),
        *(
            Result(f"peak memory of {name} (MB)", "", peak / _MB, "<=", None, "")
            for name, peak in memory.peaks.items()
        ),
    ]
    return f"{to_markdown(results)}\n{_breakdown(runs, end - first)}"


def fill(url: str, events: int) -> int:
    """Creates the backlog; returns the id of its last event."""
    send(url, events)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum")
        connection.execute("checkpoint")
        last = connection.execute("select max(ev_id) from pgque.event").fetchone()
    assert last is not None
    return int(last[0])


def send(url: str, events: int) -> None:
    """Sends events to the queue, which it creates if it is missing, and ticks it."""
    installer.install(url)
    step = _EVENTS_OF_A_TICK
    with Client(url) as client, psycopg.connect(url, autocommit=True) as connection:
        client.create_queue("orders")
        client.register_consumer("orders", "orders")
        for first in range(1, events + 1, step):
            connection.execute(_SEND, [first, min(first + step - 1, events)])
            connection.execute("select pgque.force_next_tick('orders')")
            connection.execute("select pgque.ticker('orders')")


def _wait(url: str, last: int) -> None:
    start = time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(_FINISHED, [last]).fetchone() != (True,):
            if time.monotonic() - start > _PATIENCE:
                raise TimeoutError("the backlog is not drained")
            time.sleep(0.2)
    # Lets the run record its end.
    time.sleep(5)


class Memory:
    """The peak memory of the runs' processes, without memory that they share with others.

    Args:
        daemon: the process whose descendants are measured.
    """

    def __init__(self, daemon: psutil.Process) -> None:
        self.peaks = dict.fromkeys(("the run's Python", "the JVM", "Spark's Python workers"), 0)
        self._daemon = daemon
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> "Memory":
        """Starts measuring."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Ends measuring."""
        self._left.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._left.wait(0.5):
            now = dict.fromkeys(self.peaks, 0)
            for process in self._daemon.children(recursive=True):
                with suppress(psutil.Error):
                    if name := _part(process):
                        now[name] += process.memory_full_info().pss
            for name, size in now.items():
                self.peaks[name] = max(self.peaks[name], size)


def _part(process: psutil.Process) -> str | None:
    if process.name() == "java":
        return "the JVM"
    if "pyspark.daemon" in process.cmdline():
        return "Spark's Python workers"
    # The process that executes a run starts the JVM.
    is_driver = any(child.name() == "java" for child in process.children())
    return "the run's Python" if is_driver else None


def _runs(instance: dg.DagsterInstance) -> list[dict[str, float]]:
    """Returns when each run reached each point, in the order of the runs."""
    runs = []
    for record in instance.get_run_records(dg.RunsFilter(), ascending=True):
        points = {"created": record.create_timestamp.timestamp()}
        for entry in instance.all_logs(record.dagster_run.run_id):
            event = entry.dagster_event
            if event is not None and event.event_type in _POINTS:
                points[_POINTS[event.event_type]] = entry.timestamp
        runs.append(points)
    return runs


# Events of a run, and what begins or ends with them.
_POINTS = {
    dg.DagsterEventType.RUN_START: "started",
    dg.DagsterEventType.STEP_START: "step",
    dg.DagsterEventType.STEP_OUTPUT: "computed",
    dg.DagsterEventType.HANDLED_OUTPUT: "stored",
    # The ack comes before it.
    dg.DagsterEventType.STEP_SUCCESS: "acked",
}


def _breakdown(runs: Sequence[dict[str, float]], seconds: float) -> str:
    """Returns the time that each part took, as a Markdown table."""
    names = {
        "launch the run, and import the code": ("created", "started"),
        "start the step": ("started", "step"),
        "claim, plan, start Spark, and call the function": ("step", "computed"),
        "store: read, parse and write": ("computed", "stored"),
        "ack": ("stored", "acked"),
    }
    lines = ["| part | seconds | share |", "|---|---:|---:|"]
    rest = seconds
    for name, (begin, end) in names.items():
        part = sum(run[end] - run[begin] for run in runs)
        rest -= part
        lines.append(f"| {name} | {part:.1f} | {part / seconds:.0%} |")
    lines.append(f"| between runs: the sensor's interval | {rest:.1f} | {rest / seconds:.0%} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    end_with_this_process()
    main()
