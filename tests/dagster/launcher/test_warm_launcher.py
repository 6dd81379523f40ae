"""The warm launcher: runs share processes, and are runs like any other.

Here the test launches runs as Dagster's daemon does in `tests/live`.
"""

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from pgque_dagster.launcher import dagster_internals
from pgque_dagster.launcher.liveness import Address
from pgque_dagster.project.keys import WAITS
from tests.support.dagster import warm_project
from tests.support.dagster.sensing import remote_origin
from tests.support.runner.waiting import wait_until

FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
_SETTINGS = """\
run_launcher:
  module: pgque_dagster.launcher
  class: WarmRunLauncher
  config: {config}
"""


class Warm:
    """An instance with the launcher, and a copy of `warm_project`."""

    def __init__(self, folder: Path, config: str) -> None:
        self._notes, self._seen = folder / "test", set[int]()
        self._notes.mkdir()
        (folder / "dagster.yaml").write_text(_SETTINGS.format(config=config))
        self.project = folder / "shop.py"
        shutil.copy(warm_project.__file__, self.project)
        self.instance = dg.DagsterInstance.from_config(str(folder))
        # It knows nothing of the launcher.
        self._records = dg.DagsterInstance.from_config(str(folder))
        self.location = SimpleNamespace(origin=SimpleNamespace(socket=None), server_id="1")

    def start(self, op: str, **tags: str) -> str:
        """Launches a job, with more tags of this package, and returns its run."""
        job = warm_project.JOBS[op]
        run = self.instance.create_run_for_job(
            job,
            tags={f"pgque/{name}": value for name, value in ({"warm": "true"} | tags).items()},
            remote_job_origin=remote_origin(job.name),
            job_code_origin=warm_project.origin_of(job.name, self.project),
        )
        workspace: Any = SimpleNamespace(get_code_location=lambda name: self.location)
        try:
            self.instance.launch_run(run.run_id, workspace)
        except Exception as error:
            # Dagster's own launcher, which starts cold runs, finds no code server here.
            assert "not loaded from a GRPC server" in str(error)
        return run.run_id

    def prepare(self) -> None:
        """Does what the daemon does when it has loaded the code location."""
        origin = warm_project.origin_of("say", self.project).repository_origin
        repository = SimpleNamespace(
            get_sensors=lambda: [SimpleNamespace(tags={WAITS: "true"})],
            get_python_origin=lambda: origin,
        )
        self.location.name = "shop"
        self.location.get_repositories = lambda: {"shop": repository}
        workspace = SimpleNamespace(
            code_locations=[self.location], get_code_location=lambda name: self.location
        )
        launcher: Any = self.instance.run_launcher
        launcher.prepare(workspace)

    def run(self, run: str) -> dg.DagsterRun:
        """The record of a run, which is there without the launcher."""
        found = self._records.get_run_by_id(run)
        assert found is not None
        return found

    def status(self, run: str) -> str:
        return self.run(run).status.value

    def tag(self, run: str) -> str | None:
        return self.run(run).tags.get("pgque/warm_process")

    def end_of(self, run: str) -> str:
        """Waits for the end of a run and returns its status."""
        wait_until(lambda: self.status(run) in FINISHED)
        return self.status(run)

    def said(self, op: str = "say") -> tuple[str, int]:
        """Executes a job; returns the words and the process of its run."""
        run = self.start(op)
        self.end_of(run)
        return self.note(run)

    def opened(self) -> set[int]:
        """The processes that have opened a session, which they do before their first run."""
        return {int(path.name.removeprefix("opened-")) for path in self._notes.glob("opened-*")}

    def prepared(self) -> int:
        """Waits for one more of them."""
        wait_until(lambda: self.opened() - self._seen)
        (process,) = self.opened() - self._seen
        self._seen.add(process)
        return process

    def note(self, run: str) -> tuple[str, int]:
        """Waits until a run has noted its words and its process."""
        wait_until((self._notes / run).exists)
        words, process = (self._notes / run).read_text().split()
        return words, int(process)

    def change(self, words: str) -> None:
        """Changes the code of the project, by a file that is older than the processes."""
        text = re.sub('GREETING = ".*"', f'GREETING = "{words}"', self.project.read_text())
        self.project.with_suffix(".new").write_text(text)
        os.utime(self.project.with_suffix(".new"), (0, 0))
        self.project.with_suffix(".new").rename(self.project)

    def child(self) -> Path:
        """The entry in /proc of the child that a process left."""
        return Path("/proc", (self._notes / "child").read_text())

    def messages(self, run: str) -> str:
        return "\n".join(entry.message for entry in self.instance.all_logs(run))

    def go(self) -> None:
        """Lets all runs go that wait."""
        (self._notes / "go").touch()

    def hold(self) -> None:
        (self._notes / "go").unlink(missing_ok=True)

    def dispose(self) -> None:
        self._records.dispose()
        self.instance.dispose()

    def wait_until_gone(self, process: int) -> None:
        wait_until(lambda: not Path(f"/proc/{process}").exists())


@contextmanager
def launching(folder: Path, config: str) -> Iterator[Warm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder))
        warm = Warm(folder, config)
        try:
            yield warm
        finally:
            warm.go()
            warm.dispose()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with launching(tmp_path_factory.mktemp("warm"), "{processes: 2}") as warm:
        yield warm


@pytest.fixture
def warm(running: Warm) -> Iterator[Warm]:
    running.hold()
    yield running
    running.go()


def test_a_process_executes_several_runs_and_one_that_is_ready_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_is_due = threading.Event()
    monkeypatch.setattr(dagster_internals, "_queue_is_due", queue_is_due)
    monkeypatch.chdir(tmp_path)
    with launching(tmp_path, "{processes: 1, max_runs: 2}") as warm:
        warm.prepare()
        words, first = warm.said()
        assert (words, first) == ("first", warm.prepared())
        # A run that follows at once gets the process that is about to be idle.
        assert warm.said()[1] == first
        # The daemon reads its queue as soon as a process is idle.
        wait_until(queue_is_due.is_set)
        second = warm.prepared()
        warm.change("changed")
        words, third = warm.said("fail")
        assert (words, third == second) == ("changed", False)
        assert warm.prepared() not in (first, second, third)
        for process in (first, second, third):
            warm.wait_until_gone(process)
        (tmp_path / ".env").write_text("GREETING=environment")
        assert warm.said()[0] == "environment"


@pytest.mark.slow
def test_a_run_that_comes_just_before_the_end_of_another_gets_its_process(tmp_path: Path) -> None:
    with launching(tmp_path, "{processes: 2}") as warm:
        warm.said()
        first = warm.start("wait")
        process = warm.note(first)
        threading.Timer(0.3, warm.go).start()

        assert warm.note(warm.start("say")) == process


def test_a_run_that_gets_no_warm_process_is_not_taken_for_one_whose_process_died(
    warm: Warm,
) -> None:
    """As a re-execution, it has the tags of a run whose process died."""
    gone = f"{os.uname().nodename}:1:/nowhere"
    busy = [warm.start("wait"), warm.start("wait")]
    assert len({warm.note(run) for run in busy}) == 2

    third = warm.start("say", warm_process=gone)
    cold = warm.start("say", warm="false", warm_process=gone)

    assert "All warm processes are busy: the run gets a process of its own" in warm.messages(third)
    for run in (third, cold):
        assert warm.tag(run) == "none"
        health: Any = warm.instance.run_launcher.check_run_worker_health(warm.run(run))
        assert health.status.name == "RUNNING"
    warm.go()
    assert [warm.end_of(run) for run in busy] == ["SUCCESS", "SUCCESS"]


def test_a_process_with_older_code_ends_after_its_run(warm: Warm) -> None:
    _, process = warm.note(warm.start("wait"))
    # Another one closes Dagster's storage after its run is recorded as ended.
    pool = warm.instance.run_launcher._pool
    wait_until(lambda: len(pool._processes) == len(pool._idle()) + 1)
    warm.location.server_id = "3"
    assert warm.said()[1] != process
    warm.go()
    warm.wait_until_gone(process)


@pytest.mark.parametrize("op", [pytest.param("fork", marks=pytest.mark.slow), "fork_in_c"])
def test_a_process_that_dies_fails_its_run_alone_while_a_child_of_it_lives(
    warm: Warm, op: str
) -> None:
    other = warm.start("wait")
    warm.note(other)

    run = warm.start(op)

    assert warm.end_of(run) == "FAILURE"
    assert "was killed by signal 9" in warm.messages(run)
    assert warm.run(run).tags["pgque/died"] == run
    held = {str(file.readlink()) for file in warm.child().glob("fd/*")}
    os.kill(int(warm.child().name), signal.SIGKILL)
    # What Python forks does not hold the lock either, by which others see whether it lives.
    assert any("pgque-warm-" in file for file in held) == (op == "fork_in_c")
    assert warm.status(other) == "STARTED"
    warm.go()
    assert warm.end_of(other) == "SUCCESS"


def test_a_run_is_canceled(warm: Warm) -> None:
    run = warm.start("wait")
    _, process = warm.note(run)

    assert warm.instance.run_launcher.terminate(run)

    assert warm.end_of(run) == "CANCELED"
    warm.wait_until_gone(process)
    assert not warm.instance.run_launcher.terminate(run)


def test_a_run_is_canceled_before_its_process_begins_it(warm: Warm) -> None:
    _, process = warm.said()
    pool = warm.instance.run_launcher._pool
    wait_until(lambda: any(idle.address.pid == process for idle in pool._idle()))
    os.kill(process, signal.SIGSTOP)
    run = warm.start("say")
    warm.instance.run_launcher.terminate(run)
    os.kill(process, signal.SIGCONT)

    assert warm.end_of(run) == "CANCELED"


def test_a_process_that_dies_while_its_run_is_canceled_is_replaced(warm: Warm) -> None:
    _, process = warm.said()
    run = warm.start("wait")
    assert warm.note(run)[1] == process
    before = warm.opened()

    warm.instance.run_launcher.terminate(run)
    os.kill(process, signal.SIGKILL)

    assert warm.end_of(run) == "CANCELED"
    assert warm.run(run).tags["pgque/died"] == run
    wait_until(lambda: warm.opened() - before)


@pytest.mark.parametrize("op", ["compare_on", "hide_files"])
def test_a_process_that_a_run_leaves_unfit_for_others_ends(warm: Warm, op: str) -> None:
    run = warm.start(op)
    warm.wait_until_gone(warm.note(run)[1])
    assert warm.status(run) == "SUCCESS"


def test_a_process_whose_file_was_removed_gets_no_run(warm: Warm) -> None:
    run = warm.start("say")
    _, process = warm.note(run)
    assert warm.end_of(run) == "SUCCESS"
    Path(Address.read(warm.tag(run) or "").lock).unlink()

    assert warm.said()[1] != process
    warm.wait_until_gone(process)


@pytest.mark.slow
def test_a_run_never_executes_older_code_than_that_on_disk(warm: Warm) -> None:
    warm.said()
    warm.change("changed")
    run = warm.start("wait")
    assert warm.note(run)[0] == "changed"
    warm.change("meanwhile")
    warm.go()

    assert warm.end_of(run) == "SUCCESS"
    assert warm.said()[0] == "meanwhile"


@pytest.mark.slow
def test_reloading_the_code_location_starts_new_processes(warm: Warm) -> None:
    _, process = warm.said()

    warm.location.server_id = "2"

    assert warm.said()[1] != process
    warm.wait_until_gone(process)


@pytest.mark.slow
def test_a_launcher_that_ends_leaves_a_process_that_ends_with_its_run(tmp_path: Path) -> None:
    with launching(tmp_path, "{}") as warm:
        run = warm.start("wait")
        _, process = warm.note(run)

        warm.instance.run_launcher.dispose()
        warm.go()

        warm.wait_until_gone(process)
        assert warm.status(run) == "SUCCESS"
