"""The part of Dagster's GraphQL API that programs need: readiness, runs, logs, jobs, checks."""

import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgque_dagster.project.keys import WARM

from . import HarnessError

_FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
_REQUEST_SECONDS = 30


class DagsterUnreachable(HarnessError):
    """Dagster does not answer, because it has not started yet or has ended."""


_LOCATIONS = """
{ workspaceOrError {
    __typename
    ... on PythonError { message }
    ... on Workspace { locationEntries {
        loadStatus
        locationOrLoadError {
            __typename
            ... on PythonError { message causes { message } }
            ... on RepositoryLocation {
                name
                repositories {
                    name
                    jobs { name }
                    sensors { name sensorState { status } }
                }
            }
        }
    } }
} }
"""

_RUNS = """
query Runs($tags: [ExecutionTag!]) { runsOrError(filter: {tags: $tags}) {
    __typename
    ... on PythonError { message }
    ... on Runs { results { runId status startTime endTime tags { key value } } }
} }
"""

_RUN = """
query Run($id: ID!) { runOrError(runId: $id) {
    __typename
    ... on Run { status }
} }
"""

_LOG = """
query Log($id: ID!) { logsForRun(runId: $id) {
    __typename
    ... on PythonError { message }
    ... on EventConnection { events {
        __typename
        ... on MessageEvent { message timestamp }
        ... on ExecutionStepFailureEvent { error { message causes { message } } }
        ... on AssetCheckEvaluationEvent {
            evaluation { success checkName description assetKey { path } }
        }
    } }
} }
"""

_LAUNCH = """
mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
    __typename
    ... on PythonError { message }
    ... on LaunchRunSuccess { run { runId } }
} }
"""

_START_SENSOR = """
mutation Start($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) {
    __typename
    ... on PythonError { message }
} }
"""


@dataclass(frozen=True)
class Run:
    """The fields of a run that programs use. Times are seconds since the epoch."""

    id: str
    status: str
    start_time: float | None
    end_time: float | None
    tags: Mapping[str, str]

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended, with any result."""
        return self.status in _FINISHED

    @property
    def consumer(self) -> str:
        """The consumer whose batch the run works on."""
        return self.tags["pgque/consumer"]

    @property
    def batch(self) -> tuple[str, str]:
        """The batch: its consumer and its id."""
        return self.consumer, self.tags["pgque/batch_id"]

    @property
    def attempt(self) -> int:
        """The number of the attempt at the batch."""
        return int(self.tags["pgque/attempt"])


@dataclass(frozen=True)
class LogEntry:
    """An event of a run's log, with the fields of its kind. The time is in seconds since 1970."""

    kind: str
    message: str
    time: float
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class CheckResult:
    """The result of an asset check. The asset is the last part of its key."""

    asset: str
    name: str
    passed: bool
    description: str


class Dagster:
    """A running Dagster.

    Args:
        url: the URL of its UI.
        session: the session id of all its processes.
    """

    def __init__(self, url: str, *, session: int) -> None:
        self.url = url
        self.session = session
        # Ignores a proxy in the environment, because Dagster is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_ready(self) -> bool:
        """Whether the code location is loaded.

        Raises:
            HarnessError: if loading it failed.
        """
        try:
            locations = self._locations()
        except DagsterUnreachable:
            return False
        return bool(locations)

    def runs(self, tags: Mapping[str, str]) -> list[Run]:
        """Returns the runs with these tags, the newest first."""
        found = self.ask(_RUNS, tags=[{"key": key, "value": tags[key]} for key in tags])
        return [
            Run(
                id=run["runId"],
                status=run["status"],
                start_time=run["startTime"],
                end_time=run["endTime"],
                tags={tag["key"]: tag["value"] for tag in run["tags"]},
            )
            for run in found["results"]
        ]

    def log(self, run_id: str) -> list[LogEntry]:
        """Returns what a run has logged so far."""
        return [
            LogEntry(
                kind=event["__typename"],
                message=event.get("message", ""),
                time=float(event.get("timestamp", 0)) / 1000,
                fields=event,
            )
            for event in self.ask(_LOG, id=run_id)["events"]
        ]

    def failure(self, run_id: str) -> str:
        """Returns one line that says why a run failed; for a failed step, its root cause."""
        log = self.log(run_id)
        for entry in log:
            if entry.kind == "ExecutionStepFailureEvent" and entry.fields["error"]:
                return _root_cause(entry.fields["error"])
        # The run's process died. What is logged next says how; before its step, how it started.
        messages: list[str] = []
        for entry in log:
            if entry.kind == "ExecutionStepStartEvent":
                messages.clear()
            elif entry.kind in ("EngineEvent", "RunFailureEvent") and entry.message:
                messages.append(entry.message.splitlines()[0])
        return messages[0] if messages else "no reason was logged"

    def run_job(self, name: str, *, timeout: float = 600.0) -> str:
        """Runs a job in a warm process, waits for its end, and returns the run's id.

        Raises:
            HarnessError: if the job fails, or does not end in time.
        """
        location, repository, _ = self._find("jobs", name)
        selector = {
            "jobName": name,
            "repositoryName": repository,
            "repositoryLocationName": location,
        }
        tags = {"tags": [{"key": WARM, "value": "true"}]}
        params = {"selector": selector, "runConfigData": {}, "executionMetadata": tags}
        run_id: str = self.ask(_LAUNCH, params=params)["run"]["runId"]
        deadline = time.monotonic() + timeout
        while (status := self.ask(_RUN, id=run_id)["status"]) not in _FINISHED:
            if time.monotonic() > deadline:
                raise HarnessError(f"job {name} did not end in {timeout:.0f} s: see run {run_id}")
            time.sleep(0.5)
        if status != "SUCCESS":
            raise HarnessError(f"job {name} failed: {self.failure(run_id)}")
        return run_id

    def check_results(self, run_id: str) -> list[CheckResult]:
        """Returns the results of the asset checks of a run."""
        evaluations = (entry.fields.get("evaluation") for entry in self.log(run_id))
        return [
            CheckResult(
                x["assetKey"]["path"][-1], x["checkName"], x["success"], x["description"] or ""
            )
            for x in evaluations
            if x
        ]

    def ensure_sensor_runs(self, name: str) -> None:
        """Starts a sensor if it is not running."""
        location, repository, sensor = self._find("sensors", name)
        if sensor["sensorState"]["status"] != "RUNNING":
            selector = {
                "sensorName": name,
                "repositoryName": repository,
                "repositoryLocationName": location,
            }
            self.ask(_START_SENSOR, sensor=selector)

    def ask(self, query: str, **variables: Any) -> Any:
        """Sends a query with one root field, and returns the value of this field."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_REQUEST_SECONDS) as response:
                answer = json.load(response)
        except (OSError, http.client.HTTPException) as error:
            raise DagsterUnreachable(f"Dagster does not answer at {self.url}: {error}") from error
        if answer.get("errors"):
            raise HarnessError(f"Dagster's GraphQL: {answer['errors'][0]['message']}")
        return _checked(next(iter(answer["data"].values())))

    def _find(self, kind: str, name: str) -> tuple[str, str, Mapping[str, Any]]:
        """Returns a job or sensor, after the names of its location and repository."""
        for location in self._locations():
            for repository in location["repositories"]:
                for found in repository[kind]:
                    if found["name"] == name:
                        return location["name"], repository["name"], found
        raise HarnessError(f"the definitions have no {name} among their {kind}")

    def _locations(self) -> list[dict[str, Any]]:
        """Returns the code locations, or none while they are loading."""
        entries = self.ask(_LOCATIONS)["locationEntries"]
        if not all(entry["loadStatus"] == "LOADED" for entry in entries):
            return []
        locations = [entry["locationOrLoadError"] for entry in entries]
        return [_checked(location) for location in locations]


def _checked(value: Any) -> Any:
    """Returns the value; raises an error if it is one of the schema's error types."""
    if value["__typename"].endswith("Error"):
        raise HarnessError(f"Dagster: {_root_cause(value) or value['__typename']}")
    return value


def _root_cause(error: Mapping[str, Any]) -> str:
    """Returns the first line of the innermost error's message."""
    innermost = (error.get("causes") or [error])[-1]
    return next(iter(str(innermost.get("message") or "").strip().splitlines()), "")
