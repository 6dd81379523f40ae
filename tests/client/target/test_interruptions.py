"""A process that is killed or stopped at any point applies nothing twice, and loses nothing."""

import signal
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.client.consumer.support import DONE, Queue, expire_leases, running
from tests.client.target.conftest import Target
from tests.programs.moving import BEFORE_ACK, BEFORE_COMMIT
from tests.programs.signals import go_on, has_ended, signalled
from tests.support.queues.sql import connect
from tests.support.runner.waiting import wait_until

EVENTS = ["a", "bad", "b", "c"]
SLOW_CASES = [("batch", BEFORE_COMMIT), ("mover", BEFORE_ACK)]


@pytest.fixture(autouse=True)
def places(other: Target) -> None:
    """The target has a queue and a table."""
    other.db.value("select pgque.create_queue('q')")
    other.db.execute(DONE)


def applied(other: Target, kind: str) -> "Counter[str | None]":
    question = "select ev_data from pgque.event" if kind == "mover" else "select id from done"
    with connect(other.url) as looking:
        return Counter(id for (id,) in looking.rows(question))


def driver(
    kind: str, other: Target, folder: Path, point: str, number: signal.Signals
) -> AbstractContextManager[int]:
    arguments = (kind, other.q.url, other.url, point, str(int(number)))
    return signalled("moving", *arguments, log=folder / "log")


def finish_with_another(other: Target, kind: str) -> None:
    """Runs another consumer, for which no event fails, until all is applied."""
    expire_leases(other.q.db)
    other.apply(kind)
    # What failed in the first attempt, if the target has recorded it.
    other.q.db.value("select pgque.maint_retry_events()")
    other.q.db.tick()
    other.apply(kind)
    assert applied(other, kind) == Counter(EVENTS)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("batch", BEFORE_ACK),
        ("mover", BEFORE_COMMIT),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES),
    ],
)
def test_killed(q: Queue, other: Target, tmp_path: Path, kind: str, point: str) -> None:
    q.send(*EVENTS)
    with driver(kind, other, tmp_path, point, signal.SIGKILL):
        finish_with_another(other, kind)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("batch", BEFORE_COMMIT),
        ("batch", BEFORE_ACK),
        ("mover", BEFORE_COMMIT),
        pytest.param("mover", BEFORE_ACK, marks=pytest.mark.slow),
    ],
)
def test_stopped_past_its_lease_and_continued(
    q: Queue, other: Target, tmp_path: Path, kind: str, point: str
) -> None:
    q.send(*EVENTS)
    with driver(kind, other, tmp_path, point, signal.SIGSTOP) as pid:
        # It holds a lock on the row in the target, unless it is past the commit.
        finish_with_another(other, kind)
        go_on(pid, signal.SIGCONT)
        q.send("later")
        wait_until(q.is_acked)
        assert not has_ended(pid), (tmp_path / "log").read_text()
    assert applied(other, kind) == Counter([*EVENTS, "later"])


def test_two_movers_of_one_consumer_move_each_event_once(q: Queue, other: Target) -> None:
    for number in range(6):
        q.send(*(f"{number}-{part}" for part in range(5)))
    first, second = (other.consumer("mover") for _ in range(2))
    with running(first) as errors, running(second) as others:
        wait_until(q.is_acked)
    assert (errors, others) == ([], [])
    assert applied(other, "mover") == Counter(f"{n}-{part}" for n in range(6) for part in range(5))


def test_a_target_that_ends_all_sessions_is_reached_again(q: Queue, other: Target) -> None:
    q.send("a")
    with running(other.consumer("mover")) as errors:
        wait_until(q.is_acked)
        other.db.value(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        q.send("b")
        wait_until(lambda: bool(errors) or q.is_acked())
    assert errors == []
    assert applied(other, "mover") == Counter(["a", "b"])
