"""The steps of the demo, from top to bottom."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from harness import processes
from harness.dagster_dev import ONE_RUN_SETTINGS, dagster_dev
from harness.graphql import CheckResult, Dagster
from harness.interrupts import Interrupts
from harness.place import PROJECT, Place
from harness.ticking import ticking
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from pgque_dagster.spark.cluster import class_archive
from pgque_dagster.spark.cluster.java import check_java

from .bank import QUEUE, SCALE, Load, alter_branches, load, open_bank
from .books import MONEY, compare
from .chaos import Chaos
from .console import DemoError, elapsed, say
from .report import Summary
from .watch import Watch

FOLDER = PROJECT / ".pgque" / "demo"
_VERIFY_JOB = "bank_verify"
_CHECK = "equals_source"
_SENSORS = "bank_capture", "bank_sensor"
_PLAN = (
    "pgbench runs a bank, whose tables are replicated into Delta while one is altered and a run is"
    " killed; then both are compared. This takes one to three minutes"
)
_INTERACTIVE = "pgbench runs a bank, whose tables are replicated into Delta until Ctrl-C"


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    interactive: bool
    rate: int
    postgres: int


@dataclass(frozen=True)
class Stage:
    """The running parts of the demo."""

    place: Place
    url: str
    client: Client
    dagster: Dagster
    load: Load
    opened: float
    # Closes the bank.
    close: ExitStack


def play(options: Options, place: Place, interrupts: Interrupts) -> Summary | None:
    """Runs the demo, and stops everything that it started when it returns or raises.

    Returns:
        The summary; None for an interactive demo, which only a signal ends.
    """
    say(_INTERACTIVE if options.interactive else _PLAN)
    say(f"found Java {check_java()}")
    with ExitStack() as stack:
        try:
            stage = set_up(options, place, interrupts, stack)
            if options.interactive:
                _play_on(stage)
                return None
            return _play_once(stage)
        finally:
            interrupts.ignore()
            say("stopping everything")


def set_up(options: Options, place: Place, interrupts: Interrupts, stack: ExitStack) -> Stage:
    """Starts the server, the load and Dagster, which the stack stops."""
    # Writes the class archive for the runs while the server and Dagster start.
    stack.enter_context(
        processes.running(
            [sys.executable, "-m", class_archive.__name__],
            interrupts=interrupts,
            log=place.folder / "archive.log",
            cwd=PROJECT,
        )
    )
    say(f"starting PostgreSQL {options.postgres} in {place.postgres}")
    server = EmbeddedPostgres(place.postgres, version=options.postgres)
    with interrupts.deferred():
        stack.enter_context(server)
    url = server.url
    installer.install(url)
    client = stack.enter_context(Client(url))
    client.create_queue(QUEUE)
    client.configure_queue(QUEUE, ticker_max_lag="1 second")
    with interrupts.deferred():
        stack.enter_context(ticking(url))
    say(f"installed pgque {client.version()}")

    bank_log = place.folder / "pgbench.log"
    open_bank(server, url, bank_log)
    say(f"pgbench has made a bank with {SCALE * 100_000:,} accounts")
    opened = time.monotonic()
    close = stack.enter_context(ExitStack())
    running_load = close.enter_context(load(server, url, bank_log, interrupts, rate=options.rate))
    say(f"the bank is open: {options.rate} transactions per second")
    say("starting dagster dev, which captures the tables and replicates them into Delta")
    dagster = stack.enter_context(
        dagster_dev(
            place, url, interrupts, workspace=PROJECT / "workspace.yaml", settings=ONE_RUN_SETTINGS
        )
    )
    for sensor in _SENSORS:
        dagster.ensure_sensor_runs(sensor)
    say(f"Dagster is up: {dagster.url}")
    return Stage(place, url, client, dagster, running_load, opened, close)


def _play_once(stage: Stage) -> Summary:
    chaos = Chaos(stage.dagster)
    watch = Watch(stage.client, stage.dagster, stage.load, chaos)

    watch.wait("a run to copy the tables", lambda: watch.succeeded > 0)
    say("a run has copied the tables")
    alter_branches(stage.url)
    say("added a column to pgbench_branches, and changed it in a row")
    chaos.begin()
    watch.wait("a run that works", lambda: chaos.killed is not None)
    watch.wait("the next attempt", lambda: any(run.attempt > 1 for run in watch.started))
    stage.close.close()
    load_seconds = time.monotonic() - stage.opened
    say("the bank is closed; waiting until all changes are applied")
    watch.drain(stage.place.dagster_log)
    say("all changes are applied; comparing each table with its replica, row by row")
    checks = verify(stage)
    with psycopg.connect(stage.url) as connection:
        comparisons = compare(connection, stage.place.output)
    return Summary(
        load_seconds=load_seconds,
        runs=watch.runs,
        killed=str(chaos.killed),
        checks=checks,
        comparisons=comparisons,
        seconds=elapsed(),
        ui=stage.dagster.url,
    )


def _play_on(stage: Stage) -> None:
    watch = Watch(stage.client, stage.dagster, stage.load, None, interval=15.0)
    say(f"look at {stage.dagster.url}; stop everything with Ctrl-C")
    while True:
        watch.look()
        time.sleep(0.5)


def verify(stage: Stage) -> list[CheckResult]:
    """Runs the checks that compare tables with replicas.

    Raises:
        DemoError: if one of them has not run.
    """
    results = stage.dagster.check_results(stage.dagster.run_job(_VERIFY_JOB))
    checks = [each for each in results if each.name == _CHECK]
    if {each.asset for each in checks} != set(MONEY):
        raise DemoError(f"the job {_VERIFY_JOB} has not compared all tables: {results}")
    return checks
