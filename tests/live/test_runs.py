"""Runs are killed, cancelled or paused, daemons die: every event counts once in both sinks.

Of two runs at a time, the warm process executes one, and the other has a process of its own.
"""

import os
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.live.graphql import cancel, reload
from tests.support.live.instance import Live
from tests.support.live.points import AFTER_ACK, AFTER_WRITE, BEFORE_ACK, BEFORE_WRITE
from tests.support.live.project import CONSUMERS, LINES, TOTALS


@pytest.mark.parametrize(
    ("point", "killed"),
    [
        (AFTER_WRITE, [TOTALS]),
        *(
            pytest.param(point, CONSUMERS, marks=pytest.mark.slow)
            for point in (BEFORE_WRITE, AFTER_WRITE, BEFORE_ACK, AFTER_ACK)
        ),
    ],
)
def test_every_event_counts_once_when_runs_are_killed(
    live: Live, point: str, killed: Sequence[str]
) -> None:
    """Dagster's run retries are on, but only the sensor starts another run for the batch."""
    earlier, name = live.runs(), f"{' and '.join(killed)} killed {point}"
    for consumer in killed:
        live.points.arm(consumer, point, kill=True)

    expected = live.publish(name, 20)
    live.wait_until_consumed()

    runs = live.runs_since(earlier)
    assert all(map(live.points.is_reached, killed))
    again = [] if point == AFTER_ACK else killed
    assert Counter(run.consumer for run in runs) == Counter([*CONSUMERS, *again])
    assert len({run.tags.get("pgque/warm_process") for run in runs}) > 1
    assert live.counted(name) == expected
    assert live.leftovers() == []


@pytest.mark.slow
def test_a_cancelled_run_gives_its_batch_back_and_reloading_the_code_disturbs_no_run(
    live: Live,
) -> None:
    earlier = live.runs()
    live.hold(BEFORE_WRITE, LINES)
    live.hold(AFTER_WRITE, TOTALS)
    expected = live.publish("cancelled", 20)
    live.wait_until_held(*CONSUMERS)
    held = next(run for run in live.runs() if run.consumer == LINES)

    reload(live.dagster)
    cancel(live.dagster, held.id)
    live.wait(lambda: live.run(held.id).is_finished, "the run's end")
    holder = live.holder(LINES)
    live.points.clear()
    live.wait_until_consumed()

    runs = live.runs_since(earlier)
    assert holder is None or held.id not in holder
    assert sorted((run.consumer, run.attempt, run.status) for run in runs) == [
        (LINES, 1, "CANCELED"),
        (LINES, 2, "SUCCESS"),
        (TOTALS, 1, "SUCCESS"),
    ]
    assert live.counted("cancelled") == expected


@pytest.mark.slow
@pytest.mark.parametrize("point", [BEFORE_WRITE, AFTER_WRITE])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_event_counts_once_when_a_run_is_paused_for_longer_than_its_lease(
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


@pytest.mark.slow
def test_runs_outlive_a_killed_daemon_and_the_next_one_goes_on(live: Live) -> None:
    earlier = live.runs()
    live.hold(BEFORE_WRITE, *CONSUMERS)
    expected = live.publish("before the daemon died", 20)
    live.wait_until_held(*CONSUMERS)

    live.kill_daemon()
    live.wait(lambda: not live.dagster.is_ready(), "the end of the webserver")
    expected_too = live.publish("without a daemon", 20)
    live.points.clear()
    live.wait(lambda: not live.has_code_server(), "the end of the runs")
    live.stop()
    live.start()
    live.wait_until_consumed()

    assert {run.status for run in live.runs_since(earlier)} == {"SUCCESS"}
    assert live.counted("before the daemon died") == expected
    assert live.counted("without a daemon") == expected_too


@pytest.mark.slow
def test_two_daemons_of_one_instance_count_each_event_once(live: Live) -> None:
    with live.second_daemon():
        for round_ in range(4):
            expected = live.publish(f"two daemons, {round_}", 20)
            live.wait_until_consumed()
            assert live.counted(f"two daemons, {round_}") == expected
