"""A crowd of the workers of tests.support.chaos, and what its books say in the end."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import chaos
from tests.support.queues import PATIENCE_SECONDS, Connection, connect

ROOT = Path(__file__).parents[2]
CAST = ["producer"] * 3 + ["ticker"] * 2 + ["maintainer"] + ["leased"] * 2 + ["plain"] * 2
CONSUMERS = ("leased", "plain")
BALANCED = dict.fromkeys(CONSUMERS, (0, 0, 0))


def prepare(db: Connection) -> None:
    """The queue that the crowd uses, and its books."""
    db.execute(f"{chaos.BOOKS} create table stop ()".encode())
    db.make_queue(
        consumers=CONSUMERS,
        rotation_period="50 milliseconds",
        ticker_max_lag="10 milliseconds",
        max_retries="1000000",
    )


@contextmanager
def workers(url: str, seed: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos", role, url, str(seed + number)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        for number, role in enumerate(CAST)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def send_home(url: str, running: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Ends the work; returns how each process ended."""
    with connect(url) as db:
        db.execute("insert into stop default values")
    return [process.wait(timeout=PATIENCE_SECONDS) for process in running]


def drain(url: str) -> None:
    """Consumes what is left, retries included."""
    random = chaos.Calm()
    with connect(url) as db:
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
            waiting = db.value(
                "select (select count(*) from pgque.retry_queue where ev_queue = q.queue_id)"
                " + (select sum(pending_events) from pgque.get_consumer_info('q'))"
                " from pgque.queue q where q.queue_name = 'q'",
            )


def books(db: Connection) -> dict[str, tuple[int, int, int]]:
    """How many events were lost, doubled, or processed though nobody sent them; by consumer."""
    return {name: _books(db, name) for name in CONSUMERS}


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
