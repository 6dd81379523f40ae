"""Runs whose Spark is a Connect server: it dies, they do not count events twice."""

import tempfile
from pathlib import Path

import pytest

from tests.support.live.instance import running
from tests.support.live.points import BEFORE_WRITE
from tests.support.live.project import CONSUMERS


@pytest.mark.slow
def test_every_event_counts_once_when_the_connect_server_is_killed() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), connect=True) as live,
    ):
        live.hold(BEFORE_WRITE, *CONSUMERS)
        expected = live.publish("without Spark", 20)
        live.wait_until_held(*CONSUMERS)
        live.kill_spark()
        live.points.clear()
        live.start_spark()
        live.wait_until_consumed()

        assert {run.status for run in live.runs() if run.attempt == 1} == {"FAILURE"}
        assert live.counted("without Spark") == expected
        assert live.leftovers() == []

        # Between runs, no run notices.
        earlier = live.runs()
        live.kill_spark()
        expected = live.publish("after", 20)
        live.start_spark()
        live.wait_until_consumed()

        assert {run.status for run in live.runs_since(earlier)} == {"SUCCESS"}
        assert live.counted("after") == expected
