"""Runs whose Spark is a Connect server: it dies, they do not count events twice."""

import pytest

from tests.support.live import Live
from tests.support.live_points import BEFORE_WRITE
from tests.support.live_project import CONSUMERS

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("live", ["connect"], indirect=True)]


def test_every_event_counts_once_when_the_spark_server_is_killed(live: Live) -> None:
    assert live.spark is not None
    earlier = live.runs()
    live.hold(BEFORE_WRITE, *CONSUMERS)
    expected = live.publish("without Spark", 20)
    live.wait_until_held(*CONSUMERS)

    live.spark.kill_spark()
    live.points.clear()
    live.wait_until_consumed()

    assert {run.status for run in live.runs_since(earlier) if run.attempt == 1} == {"FAILURE"}
    assert live.counted("without Spark") == expected
    assert live.leftovers() == []


def test_no_run_fails_when_the_spark_server_is_killed_between_runs(live: Live) -> None:
    assert live.spark is not None
    live.publish("before", 20)
    live.wait_until_consumed()
    earlier = live.runs()

    live.spark.kill_spark()
    expected = live.publish("after", 20)
    live.wait_until_consumed()

    assert {run.status for run in live.runs_since(earlier)} == {"SUCCESS"}
    assert live.counted("after") == expected
