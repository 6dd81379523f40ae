"""A running `dagster dev` with the warm launcher, and what tests do with it."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from demo import processes
from demo.dagster_dev import dagster_dev
from demo.graphql import Dagster
from demo.interrupts import Interrupts
from demo.place import Place
from tests.support import warm_project
from tests.support.live_graphql import LOCATION

PATIENCE_SECONDS = 180.0

SETTINGS = """\
run_launcher:
  module: pgque_dagster.launcher
  class: WarmRunLauncher
  config:
    processes: 2
    max_runs: 5
run_coordinator:
  module: dagster
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
run_monitoring:
  enabled: true
  poll_interval_seconds: 2
"""
_WORKSPACE = """\
load_from:
  - python_file:
      relative_path: {file}
      location_name: {location}
"""
_LAUNCH = """
mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
    __typename
    ... on PythonError { message }
    ... on LaunchRunSuccess { run { runId } }
} }
"""


class WarmDagster:
    """What tests ask of a running Dagster.

    Attributes:
        dagster: its GraphQL.
    """

    def __init__(self, place: Place, dagster: Dagster) -> None:
        self._place = place
        self.dagster = dagster
        self.project = place.folder / "shop.py"
        self._test = place.dagster_home / "test"
        self._test.mkdir(exist_ok=True)

    def start(self, job: str, **tags: str) -> str:
        """Launches a job, with more tags of this package, and returns its run."""
        selector = {
            "jobName": job,
            "repositoryName": "__repository__",
            "repositoryLocationName": LOCATION,
        }
        more = [{"key": f"pgque/{name}", "value": value} for name, value in tags.items()]
        params = {
            "selector": selector,
            "runConfigData": {},
            "executionMetadata": {"tags": more},
        }
        run: str = self.dagster.ask(_LAUNCH, params=params)["run"]["runId"]
        return run

    def status(self, run: str) -> str:
        (status,) = (each.status for each in self.dagster.runs({}) if each.id == run)
        return status

    def recorded_status(self, run: str) -> str:
        """The status in the instance's storage, which is there without a webserver."""
        with dg.DagsterInstance.local_temp(str(self._place.dagster_home)) as instance:
            found = instance.get_run_by_id(run)
        assert found is not None
        return found.status.value

    def warm_process(self, run: str) -> str | None:
        """What the run's tag says of its process."""
        (tags,) = (each.tags for each in self.dagster.runs({}) if each.id == run)
        return tags.get("pgque/warm_process")

    def end_of(self, run: str) -> str:
        """Waits for the end of a run and returns its status."""
        self.wait(lambda: self.status(run) in {"SUCCESS", "FAILURE", "CANCELED"}, "a run's end")
        return self.status(run)

    def said(self, run: str) -> tuple[str, int]:
        """Waits for a run that says something; returns its words and its process."""
        assert self.end_of(run) == "SUCCESS", self.messages(run)
        found = re.search(r"(\w+) from (\d+)", "\n".join(self.messages(run)))
        assert found is not None
        return found[1], int(found[2])

    def messages(self, run: str) -> list[str]:
        return [entry.message for entry in self.dagster.log(run)]

    def wait_until_waiting(self, run: str) -> int:
        """Waits until a run waits for the test; returns its process."""
        path = self._test / f"{run}.waits"
        self.wait(lambda: path.exists() and path.read_text() != "", "a run that waits")
        return int(path.read_text())

    def is_noted_as_failed(self, run: str) -> bool:
        """Whether the failure sensor got a run."""
        return (self._test / f"{run}.failed").exists()

    def go(self) -> None:
        """Lets all runs go that wait."""
        (self._test / "go").touch()

    def hold(self) -> None:
        (self._test / "go").unlink(missing_ok=True)

    def warm_processes(self) -> set[int]:
        """The warm processes that are alive."""
        found = set()
        for process in processes.session_members(self.dagster.session):
            try:
                command = Path(f"/proc/{process}/cmdline").read_text()
            except OSError:
                continue
            if "pgque_dagster.launcher.serving" in command:
                found.add(process)
        return found

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE_SECONDS:.0f} s: {what}; dagster's log ends with\n"
                + self._place.dagster_log.read_text()[-4000:]
            )
            time.sleep(0.2)


@contextmanager
def warm_dagster(folder: Path, settings: str = SETTINGS) -> Iterator[WarmDagster]:
    """Runs Dagster with the warm launcher and a copy of `warm_project`, while the block runs."""
    place = Place(folder / "place")
    with place.taken():
        project = place.folder / "shop.py"
        shutil.copy(warm_project.__file__, project)
        workspace = place.folder / "workspace.yaml"
        workspace.write_text(_WORKSPACE.format(file=project.name, location=LOCATION))
        with dagster_dev(
            place, "", Interrupts(), workspace=workspace, settings=settings
        ) as dagster:
            yield WarmDagster(place, dagster)
