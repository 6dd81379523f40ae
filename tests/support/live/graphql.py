"""What tests do to a running Dagster as a person does in its UI, and what it tells them."""

from harness.graphql import Dagster

LOCATION = "shop"

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


def _terminate(dagster: Dagster, run_id: str, policy: str) -> None:
    answer = dagster.ask(_TERMINATE, run=run_id, policy=policy)
    assert answer["__typename"] == "TerminateRunSuccess", answer
