"""What tests do to a running Dagster as a person does in its UI, and what it tells them."""

from typing import Any

from harness.graphql import Dagster

LOCATION = "shop"
SENSOR = "pgque_sensor"

_TERMINATE = """
mutation Terminate($run: String!, $policy: TerminateRunPolicy!) {
    terminateRun(runId: $run, terminatePolicy: $policy) {
        __typename
        ... on PythonError { message }
        ... on TerminateRunFailure { message }
    }
}
"""

_RELOAD = """
mutation Reload($location: String!) {
    reloadRepositoryLocation(repositoryLocationName: $location) {
        __typename
        ... on PythonError { message }
        ... on WorkspaceLocationEntry { loadStatus }
    }
}
"""

_EVALUATIONS = """
query Evaluations($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
    __typename
    ... on PythonError { message }
    ... on Sensor { sensorState {
        last: ticks(limit: 1) { skipReason }
        failed: ticks(limit: 1, statuses: [FAILURE]) { error { message } }
    } }
} }
"""


def cancel(dagster: Dagster, run_id: str) -> None:
    """Interrupts a run."""
    _terminate(dagster, run_id, "SAFE_TERMINATE")


def give_up(dagster: Dagster, run_id: str) -> None:
    """Marks a run as canceled whose process is gone."""
    _terminate(dagster, run_id, "MARK_AS_CANCELED_IMMEDIATELY")


def reload(dagster: Dagster) -> None:
    """Loads the definitions anew."""
    answer = dagster.ask(_RELOAD, location=LOCATION)
    assert answer.get("loadStatus") == "LOADED", answer


def last_skip_reason(dagster: Dagster) -> str:
    """Why the sensor's last evaluation asked for no run; nothing if it asked for one."""
    return next((tick["skipReason"] or "" for tick in _evaluations(dagster)["last"]), "")


def failed_evaluation(dagster: Dagster) -> str | None:
    """What the sensor failed with last; None if it never did."""
    return next((tick["error"]["message"] for tick in _evaluations(dagster)["failed"]), None)


def _terminate(dagster: Dagster, run_id: str, policy: str) -> None:
    answer = dagster.ask(_TERMINATE, run=run_id, policy=policy)
    assert answer["__typename"] == "TerminateRunSuccess", answer


def _evaluations(dagster: Dagster) -> Any:
    selector = {
        "sensorName": SENSOR,
        "repositoryName": "__repository__",
        "repositoryLocationName": LOCATION,
    }
    return dagster.ask(_EVALUATIONS, sensor=selector)["sensorState"]
