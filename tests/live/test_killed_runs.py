"""Runs killed at any point: afterwards every event counts once in both sinks."""

from collections import Counter

import pytest

from tests.support.live import Live, everywhere
from tests.support.live_points import AFTER_ACK, AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE
from tests.support.live_project import CONSUMERS

pytestmark = everywhere


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(BEFORE_WRITE, marks=pytest.mark.slow),
        AFTER_WRITE,
        pytest.param(BEFORE_ACK, marks=pytest.mark.slow),
        pytest.param(AFTER_ACK, marks=pytest.mark.slow),
    ],
)
def test_every_event_counts_once_when_the_runs_are_killed(live: Live, point: str) -> None:
    earlier = live.runs()
    for consumer in CONSUMERS:
        live.points.arm(consumer, point, kill=True)

    expected = live.publish(f"killed {point}", 20)
    live.wait_until_consumed()

    attempts = Counter(run.consumer for run in live.runs_since(earlier))
    assert all(map(live.points.is_reached, CONSUMERS))
    assert attempts == dict.fromkeys(CONSUMERS, 1 if point == AFTER_ACK else 2)
    assert live.counted(f"killed {point}") == expected
    assert live.leftovers() == []
