"""The warm launcher in a running Dagster: runs share processes, and are runs like any other."""

import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.live_graphql import cancel, reload
from tests.support.warm import SETTINGS, WarmDagster, warm_dagster

MAX_RUNS = 5


@pytest.fixture(scope="module")
def running_warm() -> Iterator[WarmDagster]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-warm-") as folder,
        warm_dagster(Path(folder)) as warm,
    ):
        yield warm


@pytest.fixture
def warm(running_warm: WarmDagster) -> Iterator[WarmDagster]:
    running_warm.hold()
    yield running_warm
    running_warm.go()


def test_a_process_executes_several_runs_and_is_then_replaced(warm: WarmDagster) -> None:
    said = [warm.said(warm.start("say_warm")) for _ in range(MAX_RUNS + 1)]

    runs_of_processes = Counter(process for _, process in said)
    assert len(runs_of_processes) == 2
    assert max(runs_of_processes.values()) <= MAX_RUNS


def test_a_run_that_follows_at_once_gets_the_process_that_is_about_to_be_idle(
    warm: WarmDagster,
) -> None:
    processes = [warm.said(warm.start("say_warm"))[1] for _ in range(3)]

    # One of them may be the last run of its process.
    assert any(one == next_one for one, next_one in pairwise(processes))


def test_a_run_without_the_tag_gets_a_process_of_its_own(warm: WarmDagster) -> None:
    cold = warm.start("say_cold")

    _, process = warm.said(cold)
    assert process not in warm.warm_processes()
    assert warm.warm_process(cold) is None


def test_a_cold_run_with_the_tags_of_a_warm_one_is_not_taken_for_dead(warm: WarmDagster) -> None:
    """As a re-execution has them, whose first run died."""
    gone = f"{os.uname().nodename}:1:/nowhere"
    run = warm.start("wait_warm", warm="false", warm_process=gone)
    warm.wait_until_waiting(run)
    time.sleep(5)  # several rounds of run monitoring
    warm.go()

    assert warm.end_of(run) == "SUCCESS"


def test_a_run_gets_a_process_of_its_own_while_all_warm_ones_are_busy(warm: WarmDagster) -> None:
    busy = [warm.start("wait_warm"), warm.start("wait_warm")]
    processes = {warm.wait_until_waiting(run) for run in busy}

    run = warm.start("say_warm")

    assert warm.said(run)[1] not in processes
    assert warm.warm_process(run) is None
    warm.go()
    assert [warm.end_of(run) for run in busy] == ["SUCCESS", "SUCCESS"]


def test_a_process_that_dies_fails_its_run_alone(warm: WarmDagster) -> None:
    other = warm.start("wait_warm")
    warm.wait_until_waiting(other)

    run = warm.start("die_warm")

    assert warm.end_of(run) == "FAILURE"
    assert any("was killed by signal 9" in message for message in warm.messages(run))
    warm.wait(lambda: warm.is_noted_as_failed(run), "the failure sensor")
    assert warm.status(other) == "STARTED"
    warm.go()
    assert warm.end_of(other) == "SUCCESS"


def test_a_process_whose_run_failed_gets_no_other_run(warm: WarmDagster) -> None:
    _, process = warm.said(warm.start("say_warm"))

    failed = warm.start("fail_warm")
    assert warm.end_of(failed) == "FAILURE"

    warm.wait(lambda: process not in warm.warm_processes(), "the end of the process")
    warm.wait(lambda: warm.is_noted_as_failed(failed), "the failure sensor")


def test_a_run_is_canceled(warm: WarmDagster) -> None:
    run = warm.start("wait_warm")
    process = warm.wait_until_waiting(run)

    cancel(warm.dagster, run)

    assert warm.end_of(run) == "CANCELED"
    warm.wait(lambda: process not in warm.warm_processes(), "the end of the process")


def test_a_run_never_executes_older_code_than_that_on_disk(warm: WarmDagster) -> None:
    words, _ = warm.said(warm.start("say_warm"))

    changed = warm.project.read_text().replace(f'"{words}"', '"changed"')
    warm.project.write_text(changed)

    assert warm.said(warm.start("say_warm"))[0] == "changed"


def test_code_that_changes_during_a_run_is_not_missed(warm: WarmDagster) -> None:
    run = warm.start("wait_warm")
    warm.wait_until_waiting(run)

    changed = re.sub('GREETING = ".*"', 'GREETING = "meanwhile"', warm.project.read_text())
    warm.project.write_text(changed)
    warm.go()

    assert warm.end_of(run) == "SUCCESS"
    assert warm.said(warm.start("say_warm"))[0] == "meanwhile"


def test_reloading_the_code_location_starts_new_processes(warm: WarmDagster) -> None:
    _, process = warm.said(warm.start("say_warm"))

    reload(warm.dagster)

    warm.wait(lambda: warm.said(warm.start("say_warm"))[1] != process, "a run in a new process")
    warm.wait(lambda: process not in warm.warm_processes(), "the end of the old process")


def test_a_killed_daemon_leaves_a_process_that_ends_with_its_run() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-warm-") as folder,
        warm_dagster(Path(folder)) as warm,
    ):
        warm.said(warm.start("say_warm"))
        run = warm.start("wait_warm")
        process = warm.wait_until_waiting(run)

        daemon = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(daemon, signal.SIGKILL)
        warm.go()

        warm.wait(lambda: warm.warm_processes() == set(), "the end of the process")
        assert warm.recorded_status(run) == "SUCCESS"


def test_a_process_that_holds_too_much_memory_is_replaced() -> None:
    settings = SETTINGS.replace(f"max_runs: {MAX_RUNS}", "max_memory_mb: 1")
    with (
        tempfile.TemporaryDirectory(prefix="pgque-warm-") as folder,
        warm_dagster(Path(folder), settings) as warm,
    ):
        said = [warm.said(warm.start("say_warm")) for _ in range(2)]

    assert len({process for _, process in said}) == 2
