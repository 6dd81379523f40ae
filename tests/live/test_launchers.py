"""Launchers that wait or lose runs, and pools: no batch is given up that no run has claimed."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from demo.graphql import Run
from pgque_dagster.client import Client
from tests.support.live import Live, running
from tests.support.live_graphql import give_up, last_skip_reason
from tests.support.live_launcher import SETTINGS, Mood
from tests.support.live_points import BEFORE_WRITE
from tests.support.live_project import CONSUMERS, LINES, QUEUE, TOTALS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def moody() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=SETTINGS) as live,
    ):
        yield live


@pytest.fixture
def mood(moody: Live) -> Iterator[Mood]:
    mood = Mood(moody.dagster_home)
    yield mood
    mood.work()
    moody.points.clear()


def test_runs_that_the_launcher_keeps_waiting_get_no_rivals(moody: Live, mood: Mood) -> None:
    earlier = moody.runs()
    mood.wait()
    expected = moody.publish("waiting", 20)
    for consumer in CONSUMERS:
        moody.wait(lambda name=consumer: is_waited_for(moody, name), "a run that is waited for")
    time.sleep(10)  # several evaluations
    mood.work()
    moody.wait_until_consumed()

    assert attempts(moody, earlier) == dict.fromkeys(CONSUMERS, 1)
    assert moody.counted("waiting") == expected


def test_runs_that_the_launcher_loses_use_no_attempt_up(moody: Live, mood: Mood) -> None:
    """Four are lost and then canceled, where three attempts are allowed."""
    earlier = moody.runs()
    mood.lose()
    expected = moody.publish("lost", 20)

    def cancel_lost() -> None:
        for run in moody.runs_since(earlier):
            if run.status == "STARTING":
                give_up(moody.dagster, run.id)

    def is_lost_often() -> bool:
        cancel_lost()
        return min(attempts(moody, earlier).values()) > 4

    moody.wait(is_lost_often, "more runs than attempts")
    mood.work()
    cancel_lost()
    moody.wait_until_consumed()

    assert moody.counted("lost") == expected
    with Client(moody.url) as client:
        assert client.dead_letter_counts(QUEUE) == []


def test_a_run_that_waits_for_its_pool_gets_no_rival(moody: Live, mood: Mood) -> None:
    """Both steps are in one pool with one place."""
    earlier = moody.runs()
    moody.hold(BEFORE_WRITE, *CONSUMERS)
    expected = moody.publish("pooled", 20)
    moody.wait(lambda: any(map(moody.points.is_reached, CONSUMERS)), "a run that is held")
    waiting = TOTALS if moody.points.is_reached(LINES) else LINES
    moody.wait(lambda: is_waited_for(moody, waiting), "a run that waits for its pool")
    time.sleep(10)  # several evaluations
    moody.points.clear()
    moody.wait_until_consumed()

    assert attempts(moody, earlier) == dict.fromkeys(CONSUMERS, 1)
    assert moody.counted("pooled") == expected


def is_waited_for(live: Live, consumer: str) -> bool:
    """Whether the sensor says that the consumer's batch has a run which has not claimed it."""
    told = re.compile(rf"/{consumer}: run \w+ is (queued|starting|started|not started) ")
    return told.search(last_skip_reason(live.dagster)) is not None


def attempts(live: Live, earlier: Collection[Run]) -> dict[str, int]:
    counts = Counter(run.consumer for run in live.runs_since(earlier))
    return {name: counts[name] for name in CONSUMERS}
