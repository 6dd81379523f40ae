"""A process that is killed or stopped at any point applies nothing twice, and loses nothing."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.client.consumer.support import is_acked, run_until, running, send, wait_until
from tests.support.moving_driver import BEFORE_ACK, BEFORE_COMMIT, IN_EVENT, make
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, rows, tick, value

ROOT = Path(__file__).parents[3]
EVENTS = ["a", "bad", "b", "c"]
# Each waits for a lease to end, so only some of them run each time.
CASES = [
    ("batch", BEFORE_COMMIT),
    ("batch", BEFORE_ACK),
    ("event", IN_EVENT),
    pytest.param("event", BEFORE_COMMIT, marks=pytest.mark.slow),
    pytest.param("event", BEFORE_ACK, marks=pytest.mark.slow),
    ("mover", BEFORE_COMMIT),
    pytest.param("mover", BEFORE_ACK, marks=pytest.mark.slow),
]


@contextmanager
def driver(
    kind: str, url: str, target: str, folder: Path, point: str, number: signal.Signals
) -> Iterator["subprocess.Popen[bytes]"]:
    command = (sys.executable, "-m", "tests.support.moving_driver", kind, url, target)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            (*command, str(folder), point, str(int(number))), cwd=ROOT, stderr=log
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.send_signal(signal.SIGCONT)
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def places(
    client: Client, other_url: str, other: Connection
) -> Callable[[str], "Counter[str | None]"]:
    """What is in the target; it has a queue and a table."""
    value(other, "select pgque.create_queue('q')")
    other.execute("create table done (nr serial, id text)")

    def applied(kind: str) -> "Counter[str | None]":
        question = "select ev_data from pgque.event" if kind == "mover" else "select id from done"
        with connect(other_url) as looking:
            return Counter(id for (id,) in rows(looking, question))

    return applied


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_killed(
    client: Client,
    db: Connection,
    other_url: str,
    places: Callable[[str], "Counter[str | None]"],
    tmp_path: Path,
    kind: str,
    point: str,
) -> None:
    send(client, db, *EVENTS)
    with driver(kind, client.url, other_url, tmp_path, point, signal.SIGKILL) as process:
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    finish_with_another(client, db, kind, other_url)
    assert places(kind) == Counter(EVENTS)


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_stopped_past_its_lease_and_continued(
    client: Client,
    db: Connection,
    other_url: str,
    places: Callable[[str], "Counter[str | None]"],
    tmp_path: Path,
    kind: str,
    point: str,
) -> None:
    send(client, db, *EVENTS)
    with driver(kind, client.url, other_url, tmp_path, point, signal.SIGSTOP) as process:
        wait_until((tmp_path / "reached").exists)
        # It holds a lock on the row in the target, unless it is past the commit.
        finish_with_another(client, db, kind, other_url)
        assert places(kind) == Counter(EVENTS)
        process.send_signal(signal.SIGCONT)
        send(client, db, "later")
        wait_until(lambda: is_acked(client))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "log").read_text()
    assert places(kind) == Counter([*EVENTS, "later"])


def finish_with_another(client: Client, db: Connection, kind: str, target: str) -> None:
    """Runs another consumer, for which no event fails, until all is applied."""
    run_until(make(kind, client.url, target), lambda: is_acked(client))
    # What failed in the first attempt, if the target has recorded it.
    value(db, "select pgque.maint_retry_events()")
    tick(db)
    run_until(make(kind, client.url, target), lambda: is_acked(client))


def test_two_movers_of_one_consumer_move_each_event_once(
    client: Client,
    db: Connection,
    other_url: str,
    places: Callable[[str], "Counter[str | None]"],
) -> None:
    for number in range(6):
        send(client, db, *(f"{number}-{part}" for part in range(5)))
    first, second = (make("mover", client.url, other_url) for _ in range(2))
    with running(first) as errors, running(second) as others:
        wait_until(lambda: is_acked(client))
    assert (errors, others) == ([], [])
    assert places("mover") == Counter(f"{n}-{part}" for n in range(6) for part in range(5))


def test_a_target_that_ends_all_sessions_is_reached_again(
    client: Client,
    db: Connection,
    other_url: str,
    other: Connection,
    places: Callable[[str], "Counter[str | None]"],
) -> None:
    send(client, db, "a")
    consumer = make("mover", client.url, other_url)

    with running(consumer) as errors:
        wait_until(lambda: is_acked(client))
        value(
            other,
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        send(client, db, "b")
        wait_until(lambda: bool(errors) or is_acked(client))
    assert errors == []
    assert places("mover") == Counter(["a", "b"])
