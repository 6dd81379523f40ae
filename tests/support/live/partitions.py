"""What a person does on the partitions page of an asset in Dagster's UI, and what it shows.

The mutations and their parameters are those that the page sends.
"""

from collections.abc import Mapping, Sequence

from harness.graphql import Dagster

_BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
    launchPartitionBackfill(backfillParams: $params) {
        __typename
        ... on PythonError { message }
        ... on LaunchBackfillSuccess { backfillId }
    }
}
"""

_STATE = """
query State($id: String!) { partitionBackfillOrError(backfillId: $id) {
    __typename
    ... on PythonError { message }
    ... on PartitionBackfill { status }
} }
"""

_PARTITIONS = """
query Partitions($asset: AssetKeyInput!) { assetNodeOrError(assetKey: $asset) {
    __typename
    ... on AssetNode { assetPartitionStatuses {
        ... on TimePartitionStatuses { ranges { startKey endKey status } }
    } }
} }
"""


def backfill(dagster: Dagster, asset: str, partitions: Sequence[str]) -> str:
    """Launches a backfill of an asset; returns its id."""
    params = {
        "tags": [{"key": "dagster/from_ui", "value": "true"}],
        "assetSelection": [_key(asset)],
        "partitionNames": list(partitions),
        "fromFailure": False,
    }
    answer = dagster.ask(_BACKFILL, params=params)
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    backfill_id: str = answer["backfillId"]
    return backfill_id


def backfill_status(dagster: Dagster, backfill_id: str) -> str:
    status: str = dagster.ask(_STATE, id=backfill_id)["status"]
    return status


def partition_statuses(dagster: Dagster, asset: str) -> list[tuple[str, str, str]]:
    """Ranges of partitions that have a status: the first one, the last one, the status."""
    answer = dagster.ask(_PARTITIONS, asset=_key(asset))
    ranges = answer["assetPartitionStatuses"]["ranges"]
    return [(found["startKey"], found["endKey"], found["status"]) for found in ranges]


def step_failure(dagster: Dagster, run_id: str) -> str:
    """All that the log of a run says about the step that failed."""
    errors = [
        entry.fields["error"]
        for entry in dagster.log(run_id)
        if entry.kind == "ExecutionStepFailureEvent"
    ]
    return "\n".join(
        text["message"] for error in errors for text in [error, *(error["causes"] or [])]
    )


def _key(asset: str) -> Mapping[str, Sequence[str]]:
    return {"path": [asset]}
