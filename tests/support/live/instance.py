"""A running `dagster dev` on a server of its own, and the books of what its queue was sent."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds

from harness import processes
from harness.dagster_dev import dagster_dev, project_settings
from harness.graphql import Dagster, Run
from harness.interrupts import Interrupts
from harness.place import PROJECT, Place
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from tests.support.live import project
from tests.support.live.graphql import LOCATION
from tests.support.live.points import Points
from tests.support.live.project import CONSUMERS, KEYED, LINES, QUEUE, TABLE, TOTALS, remote_file
from tests.support.queues.events import make_queue, tick
from tests.support.queues.sql import connect, rows
from tests.support.spark import clusters

PATIENCE_SECONDS = 900.0

Counted = dict[str, Counter[str]]  # by consumer

_WORKSPACE = """\
load_from:
  - python_module:
      module_name: {module}
      working_directory: {project}
      location_name: {location}
"""

# Of two runs at a time, the warm process executes one and a process of its own the other. What
# Dagster would retry by itself it leaves to the sensor.
SETTINGS = project_settings(
    run_launcher={"config": {"processes": 1}},
    concurrency={"runs": {"max_concurrent_runs": 2}},
    run_retries={"enabled": True, "max_retries": 2},
    run_monitoring={"start_timeout_seconds": 120, "poll_interval_seconds": 1},
)


class Live:
    """A running Dagster and its database.

    Attributes:
        url: the database.
        dagster_home: the folder of its instance.
        output: the folder of what is stored outside the database.
        dagster: changes when it is started again.
        points: where runs stop.
    """

    dagster: Dagster

    def __init__(self, place: Place, server: EmbeddedPostgres, settings: str, module: str) -> None:
        self._place = place
        self._settings = settings
        self._spark = ExitStack()
        self._spark_port = "0"
        self._module = module
        self._workspace = place.folder / "workspace.yaml"
        self.dagster_home = place.dagster_home
        self.output = place.output
        self._server = server
        self._running = ExitStack()
        self.url = server.url
        self.points = Points(place.folder / "points")
        installer.install(self.url)
        with Client(self.url) as client:
            client.create_queue(KEYED)
            for consumer in CONSUMERS:
                make_queue(client, QUEUE, consumer)
        with connect(self.url) as db:
            db.execute(TABLE.encode())

    def start(self) -> None:
        self._workspace.write_text(
            _WORKSPACE.format(module=self._module, project=PROJECT, location=LOCATION)
        )
        self.dagster = self._running.enter_context(
            dagster_dev(
                self._place,
                self.url,
                Interrupts(),
                workspace=self._workspace,
                settings=self._settings,
            )
        )

    def stop(self) -> None:
        self._running.close()

    @contextmanager
    def spark_connect(self) -> Iterator[None]:
        """Has the runs use the sessions of a Spark Connect server while the block runs."""
        with self._spark:
            self.start_spark()
            yield

    def start_spark(self) -> None:
        """Starts the Spark Connect server, at the same URL each time."""
        port = {"spark.connect.grpc.binding.port": self._spark_port}
        server = clusters.connect_server(self._place.folder, port, {"PGQUE_SECRET_URL": self.url})
        url = self._spark.enter_context(server)
        self._spark_port = url.rpartition(":")[2]
        remote_file(self._place.folder).write_text(url)

    def kill_spark(self) -> None:
        self._spark.close()

    def kill(self) -> None:
        """Kills `dagster dev` with all that it started, runs included."""
        for process in processes.session_members(self.dagster.session):
            os.kill(process, signal.SIGKILL)

    def kill_daemon(self) -> None:
        """Kills the daemon; `dagster dev` notices it and shuts down."""
        (process,) = self._processes("-m", "dagster._daemon")
        os.kill(process, signal.SIGKILL)

    @contextmanager
    def second_daemon(self) -> Iterator[None]:
        """Runs another daemon of the same instance while the block runs."""
        with clusters.daemon(
            self._place.folder / "second_daemon.log",
            "Instance is configured with the following daemons",
            *(sys.executable, "-m", "dagster._daemon", "run"),
            *("--workspace", str(self._workspace)),
            env={
                "DAGSTER_HOME": str(self.dagster_home),
                "PGQUE_URL": self.url,
                "PGQUE_DEMO_OUTPUT": str(self.output),
                "PYTHONPATH": str(PROJECT),
            },
        ):
            yield

    def has_code_server(self) -> bool:
        """Whether there is what executes runs; a shutdown leaves it until they have ended."""
        warm = self._processes("-m", "pgque_dagster.launcher.serving")
        return bool(warm or self._processes("api", "grpc"))

    def _processes(self, *words: str) -> list[int]:
        """The processes of Dagster that have these words, one after the other, in their command."""
        found = []
        for process in processes.session_members(self.dagster.session):
            with suppress(FileNotFoundError):
                if "\0".join(words) in Path(f"/proc/{process}/cmdline").read_text():
                    found.append(process)
        return found

    def kill_postgres(self) -> None:
        """Ends the server as a crash does; its unlogged tables are empty afterwards."""
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.stop()

    def stop_postgres(self) -> None:
        self._server.stop()

    def start_postgres(self) -> None:
        self._server.start()

    def publish(self, name: str, count: int) -> Counted:
        """Sends events of this name and ticks; returns what the sinks must hold."""
        with Client(self.url) as client:
            payloads = [f'{{"event": "{name}/{n}", "amount": 1}}' for n in range(count)]
            client.send_batch(QUEUE, payloads)
            tick(client, QUEUE)
        once = Counter(f"{name}/{n}" for n in range(count))
        return dict.fromkeys(CONSUMERS, once)

    def counted(self, name: str) -> Counted:
        """How often each sink holds each event of this name."""
        return {LINES: self._lines(name), TOTALS: self._totals(name)}

    def _lines(self, name: str) -> Counter[str]:
        table = ds.dataset(self._place.output / LINES).to_table(columns=["event"])
        mine = table.filter(pc.starts_with(table["event"], f"{name}/"))
        return Counter(mine["event"].to_pylist())

    def _totals(self, name: str) -> Counter[str]:
        with connect(self.url) as db:
            sql = f"select event, amount from {TOTALS} where starts_with(event, %s)"
            return Counter(dict(rows(db, sql, f"{name}/")))

    def leftovers(self) -> list[str]:
        """What dead runs left beside the sinks."""
        with connect(self.url) as db:
            stages = rows(db, "select relname::text from pg_class where relname ~ '^pgque_stage_'")
        aside = (self._place.output / f".{LINES}.pgque").glob("batch-*/.*")
        return [stage for (stage,) in stages] + [path.name for path in aside]

    def runs(self) -> list[Run]:
        """All runs for a batch of the queue so far."""
        return self.dagster.runs({"pgque/queue": QUEUE})

    def run(self, run_id: str) -> Run:
        (found,) = (run for run in self.runs() if run.id == run_id)
        return found

    def runs_since(self, earlier: Collection[Run]) -> list[Run]:
        """The runs begun since these were all."""
        known = {run.id for run in earlier}
        return [run for run in self.runs() if run.id not in known]

    def holder(self, consumer: str) -> str | None:
        """The owner of the lease on a consumer's batch, while it lives."""
        with Client(self.url) as client:
            lease = client.lease_info(QUEUE, consumer)
        return lease.owner if lease and lease.is_live else None

    def hold(self, point: str, *consumers: str) -> None:
        """Has the next run of each consumer stop at a point."""
        for consumer in consumers:
            self.points.arm(consumer, point, kill=False)

    def kill_at(self, point: str, consumer: str) -> None:
        """Waits until a run of the consumer is killed at a point."""
        self.points.clear()
        self.points.arm(consumer, point, kill=True)
        self.wait(lambda: self.points.is_reached(consumer), f"a run killed {point}")
        self.points.clear()

    def wait_until_held(self, *consumers: str) -> None:
        self.wait(lambda: all(map(self.points.is_reached, consumers)), "runs that are held")

    def wait_until_consumed(self) -> None:
        """Waits until no batch is left and all runs have ended."""
        self.wait(self.is_consumed, "all batches acked")
        self.wait(lambda: all(run.is_finished for run in self.runs()), "all runs at their end")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE_SECONDS:.0f} s: {what}; dagster's log ends with\n"
                + self._place.dagster_log.read_text()[-4000:]
            )
            time.sleep(0.3)

    def is_consumed(self) -> bool:
        with Client(self.url) as client:
            states = client.consumers(QUEUE)
        return all(state.batch_id is None and state.pending_events == 0 for state in states)


@contextmanager
def running(
    folder: Path,
    *,
    settings: str = SETTINGS,
    module: str = project.__name__,
    connect: bool = False,
) -> Iterator[Live]:
    """A live Dagster in a folder, while the block runs.

    Args:
        folder: for all its files.
        settings: of its instance.
        module: has the definitions, with the queue and the consumers of `project`.
        connect: whether the Spark of the runs is a Connect server.
    """
    place = Place(folder / "place")
    with ExitStack() as stack:
        stack.enter_context(place.taken())
        server = stack.enter_context(EmbeddedPostgres(place.postgres))
        live = Live(place, server, settings, module)
        if connect:
            stack.enter_context(live.spark_connect())
        stack.callback(live.stop)
        live.start()
        yield live
