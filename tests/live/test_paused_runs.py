"""Runs that stop for longer than their lease and then go on: every event counts once."""

import os
import signal

import pytest

from tests.support.live import Live, everywhere
from tests.support.live_points import AFTER_WRITE, BEFORE_WRITE
from tests.support.live_project import LINES, TOTALS

pytestmark = [pytest.mark.slow, everywhere]


@pytest.mark.parametrize("point", [BEFORE_WRITE, AFTER_WRITE])
@pytest.mark.parametrize("consumer", [LINES, TOTALS])
def test_every_event_counts_once_when_a_run_is_paused(
    live: Live, consumer: str, point: str
) -> None:
    name = f"{consumer} paused {point}"
    earlier = live.runs()
    live.hold(point, consumer)
    expected = live.publish(name, 20)
    live.wait_until_held(consumer)
    paused = live.points.process(consumer)

    os.kill(paused, signal.SIGSTOP)
    try:
        live.points.clear()
        live.wait(live.is_consumed, "the batch acked by another run")
    finally:
        os.kill(paused, signal.SIGCONT)
    live.wait_until_consumed()

    attempts = [run for run in live.runs_since(earlier) if run.consumer == consumer]
    assert {run.attempt: run.status for run in attempts} == {1: "FAILURE", 2: "SUCCESS"}
    assert live.counted(name) == expected
    assert live.leftovers() == []
