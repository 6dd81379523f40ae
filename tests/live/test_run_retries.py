"""Dagster's run retries are on: only the sensor starts another run for a batch that failed."""

import tempfile
from pathlib import Path

import pytest

from tests.support.live import running
from tests.support.live_points import AFTER_WRITE
from tests.support.live_project import CONSUMERS

SETTINGS = """\
run_retries:
  enabled: true
  max_retries: 2
concurrency:
  runs:
    max_concurrent_runs: 4
"""


@pytest.mark.slow
def test_a_batch_whose_run_is_killed_is_retried_by_the_sensor_alone() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=SETTINGS) as live,
    ):
        for consumer in CONSUMERS:
            live.points.arm(consumer, AFTER_WRITE, kill=True)
        expected = live.publish("retried", 20)
        live.wait_until_consumed()

        assert all(map(live.points.is_reached, CONSUMERS))
        assert [run for run in live.runs() if "dagster/retry_number" in run.tags] == []
        attempts = sorted((run.consumer, run.attempt, run.status) for run in live.runs())
        assert attempts == [
            (name, number, status)
            for name in CONSUMERS
            for number, status in [(1, "FAILURE"), (2, "SUCCESS")]
        ]
        assert live.counted("retried") == expected
        assert live.leftovers() == []
