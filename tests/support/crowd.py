"""A crowd of the workers of tests.support.chaos, and what its books say in the end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.support import chaos
from tests.support.queues import PATIENCE_SECONDS, Connection, connect

ROOT = Path(__file__).parents[2]
CAST = ["producer"] * 3 + ["ticker"] * 2 + ["maintainer"] + ["leased"] * 2 + ["plain"] * 2
CONSUMERS = ("leased", "plain")
BALANCED = dict.fromkeys(CONSUMERS, (0, 0, 0))
# What a released version lacks: slots, and transactions that are prepared.
FULL_CAST = [*CAST, "preparer", "elsewhere", "slot", "slot", "repartitioner"]
FULL_BALANCED = {**BALANCED, "parted": (0, 0, 0)}
EVENTS_A_CUT = 15
PAUSE_SECONDS = 3 * chaos.LEASE_SECONDS
SLOTS = """
select coalesce((select max(n) from pgque.partition_consumer where co_name = 'parted'), 0)
"""


def prepare(db: Connection) -> None:
    """The queue that the crowd uses, and its books."""
    db.execute(f"{chaos.BOOKS} create table stop ()".encode())
    db.make_queue(
        consumers=CONSUMERS,
        rotation_period="50 milliseconds",
        ticker_max_lag="10 milliseconds",
        max_retries="1000000",
    )


def prepare_all(db: Connection) -> None:
    """The same for the full cast: a consumer with slots, and a queue beside."""
    prepare(db)
    for slot in range(3):
        db.value("select pgque.subscribe_slot('q', 'parted', %s, 3)", slot)
    db.make_queue("other")


@contextmanager
def workers(
    url: str, seed: int, cast: Sequence[str] = CAST
) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos", role, url, str(seed + number)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        for number, role in enumerate(cast)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def disturb(url: str, random: Random, cuts: int) -> int:
    """Disturbs so many sessions, one after the other, while events are sent; returns how many."""
    disturbed = 0
    deadline = time.monotonic() + PATIENCE_SECONDS + 3 * cuts
    with connect(url) as db:
        enough = db.value("select count(*) from ledger") + cuts * EVENTS_A_CUT
        while disturbed < cuts or db.value("select count(*) from ledger") < enough:
            assert time.monotonic() < deadline, f"{disturbed} sessions disturbed"
            victims = db.rows("select pid from pg_stat_activity where application_name ~ '^chaos'")
            if victims:
                disturbed += disturb_one(db, random, *random.choice(victims))
            time.sleep(random.uniform(0, 0.4))
    return disturbed


def disturb_one(db: Connection, random: Random, pid: int) -> int:
    """Ends a session, cancels its statement, or stops its process for longer than its lease."""
    what = random.random()
    if what < 0.6:
        return int(db.value("select pg_terminate_backend(%s)", pid))
    if what < 0.9:
        return int(db.value("select pg_cancel_backend(%s)", pid))
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return 0
    return 1


def send_home(url: str, running: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Ends the work; returns how each process ended."""
    with connect(url) as db:
        db.execute("insert into stop default values")
    return [process.wait(timeout=PATIENCE_SECONDS) for process in running]


def drain(url: str) -> None:
    """Consumes what is left, retries included, after the transactions that are prepared ended."""
    random = chaos.Calm()
    with connect(url) as db:
        for (left,) in db.rows(
            "select gid from pg_prepared_xacts where database = current_database()"
        ):
            db.execute(f"commit prepared '{left}'".encode())
        slots = db.value(SLOTS)
        if slots:  # takes back what the repartitioner has asked for
            db.value("select pgque.repartition('q', 'parted', %s)", slots)
        time.sleep(chaos.LEASE_SECONDS)
        deadline = time.monotonic() + 120
        waiting = 1
        while waiting:
            assert time.monotonic() < deadline, f"{waiting} events are never consumed"
            db.value("select pgque.maint_retry_events()")
            db.value("select pgque.force_next_tick('q')")
            db.value("select pgque.ticker()")
            for _ in range(10):
                with chaos.losing_quietly():
                    chaos.consume_leased(db, random, "drain")
                with chaos.losing_quietly():
                    chaos.consume_plain(db, random, "drain")
            for slot in range(slots):
                drain_slot(db, slot, slots)
            waiting = db.value(
                "select (select count(*) from pgque.retry_queue where ev_queue = q.queue_id)"
                " + (select sum(pending_events) from pgque.get_consumer_info('q'))"
                " from pgque.queue q where q.queue_name = 'q'",
            )


def drain_slot(db: Connection, slot: int, slots: int) -> None:
    page = (slot, slots, "drain")
    db.value("select pgque.claim_slot('q', 'parted', %s, 'drain', '1 minute')", slot)
    while payloads := db.rows(chaos.PAGE, *page):
        with db.transaction():
            sql = "insert into sink select 'parted', 0, unnest(%s::text[])"
            db.execute(sql, [[payload for (payload,) in payloads]])
            db.value("select pgque.ack_partitioned('q', 'parted', %s, %s, %s)", *page)


def books(db: Connection) -> dict[str, tuple[int, int, int]]:
    """How many events were lost, doubled, or processed though nobody sent them; by consumer."""
    names = CONSUMERS + (("parted",) if db.value(SLOTS) else ())
    return {name: _books(db, name) for name in names}


def _books(db: Connection, consumer: str) -> tuple[int, int, int]:
    sql = """
    select count(*) filter (where s.payload is null), count(*) filter (where s.times > 1),
           count(*) filter (where l.payload is null)
    from ledger l
    full join (select payload, count(*) times from sink where consumer = %s group by 1) s
        using (payload)
    """
    ((lost, doubled, invented),) = db.rows(sql, consumer)
    return lost, doubled, invented
