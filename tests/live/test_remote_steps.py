"""Steps in pods that share only the database and the output with their run: no event is lost."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from harness.graphql import Run
from tests.support.dagster.remote_steps import Pod, all_pods, pods
from tests.support.live import pod_project
from tests.support.live.graphql import give_up
from tests.support.live.instance import Live, running
from tests.support.live.points import AFTER_WRITE, BEFORE_WRITE
from tests.support.live.project import CONSUMERS, LINES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def remote() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=pod_project.SETTINGS, module=pod_project.__name__) as live,
    ):
        yield live
        for pod in all_pods(live.output):
            pod.signal(signal.SIGKILL)


def test_every_event_counts_once_when_the_pods_are_killed(remote: Live) -> None:
    earlier = remote.runs()
    for consumer in CONSUMERS:
        remote.points.arm(consumer, AFTER_WRITE, kill=True)

    expected = remote.publish("killed", 20)
    remote.wait_until_consumed()
    remote.points.clear()

    attempts = Counter(run.consumer for run in remote.runs_since(earlier))
    assert attempts == dict.fromkeys(CONSUMERS, 2)
    assert remote.counted("killed") == expected
    assert remote.leftovers() == []


def test_a_pod_that_is_paused_loses_its_batch_and_stores_nothing_afterwards(remote: Live) -> None:
    earlier = remote.runs()
    remote.hold(BEFORE_WRITE, LINES)
    expected = remote.publish("paused", 20)
    remote.wait_until_held(LINES)
    pod = pod_of(remote, earlier)
    pod.signal(signal.SIGSTOP)
    remote.points.clear()
    remote.wait(remote.is_consumed, "a batch that another run took over")
    pod.signal(signal.SIGCONT)
    remote.wait_until_consumed()
    remote.wait(lambda: not pod.is_running, "the end of the pod")

    mine = [run for run in remote.runs_since(earlier) if run.consumer == LINES]
    assert Counter(run.status for run in mine) == {"SUCCESS": 1, "FAILURE": 1}
    assert remote.counted("paused") == expected
    assert remote.leftovers() == []


def test_a_pod_whose_run_worker_is_killed_finishes_and_acks_its_batch(remote: Live) -> None:
    """Dagster's run stays as it is, until run monitoring or somebody ends it."""
    earlier = remote.runs()
    remote.hold(AFTER_WRITE, LINES)
    expected = remote.publish("without a worker", 20)
    remote.wait_until_held(LINES)
    pod = pod_of(remote, earlier)
    os.kill(pod.run_worker, signal.SIGKILL)
    remote.points.clear()
    remote.wait(remote.is_consumed, "all batches acked")
    remote.wait(lambda: not pod.is_running, "the end of the pod")
    (orphan,) = [run for run in remote.runs_since(earlier) if run.consumer == LINES]
    if not orphan.is_finished:
        give_up(remote.dagster, orphan.id)

    assert remote.counted("without a worker") == expected
    assert remote.leftovers() == []


def pod_of(remote: Live, earlier: Collection[Run]) -> Pod:
    """The pod of the only run of order_lines begun since."""
    (run,) = [run for run in remote.runs_since(earlier) if run.consumer == LINES]
    (pod,) = pods(remote.output, run.id)
    return pod
