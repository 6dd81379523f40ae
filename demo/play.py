"""The steps of the demo, from top to bottom."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from pgque_dagster import installer
from pgque_dagster.client import Client, PgqueError, Ticker
from pgque_dagster.embedded import EmbeddedPostgres
from pgque_dagster.spark.cluster.java import check_java

from .bank import MALFORMED, QUEUE, SCALE, Load, load, open_bank
from .books import LEDGERS, Comparison, booked_accounts, compare, derived_accounts
from .chaos import Chaos
from .console import DemoError, elapsed, say
from .dagster_dev import dagster_dev
from .graphql import Dagster
from .interrupts import Interrupts
from .place import Place
from .report import Summary
from .watch import Watch

CHECK_JOB = "bank_checks"
_FOR_EVER = 10**9


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    interactive: bool
    seconds: int
    rate: int
    postgres: int
    chaos: bool


@dataclass(frozen=True)
class Stage:
    """The running parts of the demo."""

    place: Place
    server: EmbeddedPostgres
    url: str
    client: Client
    dagster: Dagster
    load: Load
    opened: float


def play(options: Options, place: Place, interrupts: Interrupts) -> Summary | None:
    """Runs the demo, and stops everything that it started when it returns or raises.

    Returns:
        The summary; None for an interactive demo, which only a signal ends.
    """
    say(f"found Java {check_java()}")
    with ExitStack() as stack:
        try:
            stage = set_up(options, place, interrupts, stack)
            if options.interactive:
                _play_on(stage, options)
                return None
            return _play_once(stage, options)
        finally:
            interrupts.ignore()
            say("stopping everything")


def set_up(options: Options, place: Place, interrupts: Interrupts, stack: ExitStack) -> Stage:
    """Starts the server, the load and Dagster, which the stack stops."""
    say(f"starting PostgreSQL {options.postgres} in {place.postgres}")
    server = EmbeddedPostgres(place.postgres, version=options.postgres)
    with interrupts.deferred():
        stack.enter_context(server)
    url = server.url
    installer.install(url)
    client = stack.enter_context(Client(url))
    client.create_queue(QUEUE)
    client.configure_queue(QUEUE, ticker_max_lag="1 second")
    for ledger in LEDGERS:
        client.register_consumer(QUEUE, ledger.asset)
    with interrupts.deferred():
        stack.enter_context(ticking(url))
    say(f"installed pgque {client.version()}, with queue {QUEUE} and {len(LEDGERS)} consumers")

    say(f"pgbench opens a bank: {SCALE} branches, {SCALE * 100_000:,} accounts")
    open_bank(server, url, place.pgbench_log)
    say("the bank's postings are sent to the queue")

    seconds = _FOR_EVER if options.interactive else options.seconds
    duration = "" if options.interactive else f" for {seconds} s"
    say(f"the bank opens{duration}, {options.rate} transactions per second")
    opened = time.monotonic()
    running_load = stack.enter_context(
        load(server, url, place.pgbench_log, interrupts, seconds=seconds, rate=options.rate)
    )
    say("starting dagster dev, which loads the assets; the queue keeps the events until then")
    dagster = stack.enter_context(dagster_dev(place, url, interrupts))
    for ledger in LEDGERS:
        dagster.ensure_sensor_runs(f"{ledger.asset}_sensor")
    say(f"Dagster is up: {dagster.url}")
    return Stage(place, server, url, client, dagster, running_load, opened)


def _play_once(stage: Stage, options: Options) -> Summary:
    chaos = Chaos(stage.dagster) if options.chaos else None
    watch = Watch(stage.client, stage.dagster, chaos)

    watch_load(stage, watch, options.seconds)
    say("the bank is closed; waiting until the queue is drained")
    watch.drain(stage.place.dagster_log)
    drained_seconds = time.monotonic() - stage.opened
    say("the queue is drained")
    if chaos is not None and chaos.killed is None:
        raise DemoError("CHAOS found no run to kill: increase --seconds")

    comparisons = _compare(stage)
    dead_letters, purged = _settle_dead_letters(stage)
    with psycopg.connect(stage.url) as connection:
        postings = connection.execute("select count(*) from pgbench_history").fetchone()
    return Summary(
        postings=postings[0] if postings else 0,
        malformed=len(MALFORMED),
        load_seconds=options.seconds,
        drained_seconds=drained_seconds,
        runs=watch.runs,
        killed=chaos.killed if chaos else None,
        dead_letters=dead_letters,
        purged=purged,
        comparisons=comparisons,
        seconds=elapsed(),
        ui=stage.dagster.url,
    )


def _play_on(stage: Stage, options: Options) -> None:
    chaos = Chaos(stage.dagster) if options.chaos else None
    watch = Watch(stage.client, stage.dagster, chaos, interval=15.0)
    say(f"look at {stage.dagster.url}; stop everything with Ctrl-C")
    watch_load(stage, watch, options.seconds)


@contextmanager
def ticking(url: str) -> Iterator[None]:
    """Ticks in the background, as `pgque ticker` does."""
    ticker = Ticker(url)

    def run() -> None:
        try:
            ticker.run()
        except PgqueError as error:
            say(f"the ticker ended: {error}")

    thread = threading.Thread(target=run, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join(10)


def watch_load(stage: Stage, watch: Watch, seconds: int) -> None:
    """Watches until the load ends, and sends the malformed events evenly over `seconds`."""
    waiting = list(MALFORMED)
    while stage.load.is_running:
        due = (len(MALFORMED) - len(waiting) + 1) * seconds / (len(MALFORMED) + 1)
        if waiting and time.monotonic() - stage.opened >= due:
            _send_malformed(stage, waiting.pop(0))
        watch.look()
        time.sleep(0.5)
    for text in waiting:
        _send_malformed(stage, text)


def _send_malformed(stage: Stage, text: str) -> None:
    stage.client.send(QUEUE, text, type="history")
    say(f"sent a malformed event: {text}")


def _compare(stage: Stage) -> list[Comparison]:
    say("comparing Spark's balances with the bank's")
    comparisons = []
    with psycopg.connect(stage.url) as connection:
        for ledger in LEDGERS:
            booked = booked_accounts(connection, ledger)
            comparisons.append(
                compare(ledger, booked, derived_accounts(stage.place.output, ledger))
            )
    wrong = sum(len(comparison.mismatches) for comparison in comparisons)
    say(f"compared Spark's balances with the bank's: {wrong} mismatches")
    return comparisons


def _settle_dead_letters(stage: Stage) -> tuple[int, int]:
    """Shows that the check fails, purges the dead letters, and shows that it passes.

    Returns:
        The number of dead letters, and how many of them were purged.

    Raises:
        DemoError: if their number differs from that of the malformed events, or the check's result
            is wrong.
    """
    found = sum(count.count for count in stage.client.dead_letter_counts(QUEUE))
    expected = len(MALFORMED) * len(LEDGERS)
    if found != expected:
        raise DemoError(f"there are {found} dead letters, but {expected} were expected")
    say("running the dead-letter check before and after the dead letters are purged")
    _expect_check(stage, passed=False)
    say(f"the dead-letter check fails as expected: {found} dead letters")
    purged = stage.client.purge_dead_letters(QUEUE, timedelta())
    _expect_check(stage, passed=True)
    say(f"purged {purged}; the dead-letter check passes")
    return found, purged


def _expect_check(stage: Stage, *, passed: bool) -> None:
    results = stage.dagster.check_results(stage.dagster.run_job(CHECK_JOB))
    if results.get("dead_letters") is not passed:
        raise DemoError(f"the dead-letter check should {'pass' if passed else 'fail'}: {results}")
