"""A consumer far behind catches up in few runs."""

from collections import Counter

import pytest

from tests.support.live import Live
from tests.support.live_points import BEFORE_WRITE
from tests.support.live_project import CONSUMERS, LINES, TOTALS


@pytest.mark.slow
def test_a_backlog_of_a_million_events_is_drained_in_few_runs(live: Live) -> None:
    earlier = live.runs()
    live.hold(BEFORE_WRITE, *CONSUMERS)
    live.publish("in front of the backlog", 1)
    live.wait_until_held(*CONSUMERS)
    expected = live.publish("backlog", 1_000_000)

    live.points.clear()
    live.wait_until_consumed()

    runs = live.runs_since(earlier)
    assert {run.status for run in runs} == {"SUCCESS"}
    # One run drains several batches. Else each takes two ticks of 100,000: max_events is 250,000.
    assert Counter(run.consumer for run in runs) == {LINES: 1, TOTALS: 6}
    assert live.counted("backlog") == expected
