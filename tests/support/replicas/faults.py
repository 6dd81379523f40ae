"""Points of a copy and of an apply at which a test may have something happen."""

from collections.abc import Callable
from typing import Any

import pytest

from pgque_dagster.client.batch import Batch
from pgque_dagster.client.last_batch import LastBatch
from pgque_dagster.client.replicas import batch_tables
from pgque_dagster.client.replicas.postgres import parts as postgres_parts
from pgque_dagster.client.replicas.postgres import replicate as postgres
from pgque_dagster.client.replicas.postgres.table import TargetTable
from pgque_dagster.client.replicas.standing import Standing
from pgque_dagster.spark.replicas import delta, iceberg, parts, replicate
from pgque_dagster.spark.sinks.delta import replacing
from pgque_dagster.spark.sinks.files.copy_files import CopyFiles
from pgque_dagster.spark.sinks.iceberg import commit as iceberg_commit
from tests.support.replicas.replication import DeltaReplication, IcebergReplication, Replication

_ALL: tuple[tuple[Any, str], ...] = (
    (Standing, "check_unchanged"),
    (Batch, "renew"),
    (Batch, "ack"),
)
_LAKE: tuple[tuple[Any, str], ...] = (
    (batch_tables, "find_standings"),
    (replicate, "replica_of"),
    (parts, "rows_at"),
    (CopyFiles, "begin"),
    (CopyFiles, "add"),
    (parts.CopyInParts, "rows"),
    (replicate, "net_changes"),
    (replicate, "remember"),
)
_OUTPUT = ("begin", "write", "read", "commit", "check", "adopt")
_DELTA = (
    *_ALL,
    *_LAKE,
    *((delta._Output, name) for name in _OUTPUT),
    (delta, "write_changes"),
    (delta, "rows_with_keys"),
    (replacing, "find_positions"),
    (replacing, "write_vectors"),
    (replacing, "commit"),
)
_ICEBERG = (
    *_ALL,
    *_LAKE,
    *((iceberg._Output, name) for name in _OUTPUT),
    *((iceberg, name) for name in ("find_positions", "commit_snapshot")),
    (iceberg_commit, "write_deletes"),
)
_POSTGRES = (
    *_ALL,
    (batch_tables, "find_standings"),
    (postgres, "replica_of"),
    (postgres, "create_stages"),
    (postgres, "stage_events"),
    (postgres, "stage_rows"),
    (postgres, "remember"),
    (TargetTable, "overwrite"),
    (TargetTable, "apply"),
    (TargetTable, "follow"),
    (postgres_parts.StagedCopy, "begin"),
    (postgres_parts, "pipe"),
    (postgres_parts.CopyInParts, "publish"),
    (LastBatch, "take"),
    (LastBatch, "record"),
)


class Killed(BaseException):
    """Ends an attempt as if its process were killed: nothing of ours catches it."""


def die() -> None:
    raise Killed


class Faults:
    """Calls a function once, when an attempt reaches a point.

    Args:
        replication: which replicas the attempts are at.
        patch: undoes what this does.

    Attributes:
        points: the points.
        has_fired: whether the point was reached since it was set.
    """

    def __init__(self, replication: Replication, patch: pytest.MonkeyPatch) -> None:
        functions = (
            _DELTA
            if isinstance(replication, DeltaReplication)
            else _ICEBERG
            if isinstance(replication, IcebergReplication)
            else _POSTGRES
        )
        self.points = [f"{when} {name}" for _, name in functions for when in ("before", "after")]
        self.has_fired = False
        self._point: str | None = None
        self._passes = 0
        for owner, name in functions:
            patch.setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def set(self, point: str, passes: int, action: Callable[[], object]) -> None:
        """Has the function called at a point, after the point was passed some times."""
        self.has_fired = False
        self._point, self._passes, self._action = point, passes, action

    def clear(self) -> None:
        """Has nothing happen any more."""
        self._point = None

    def _wrapped(self, inner: Callable[..., Any], name: str) -> Callable[..., Any]:
        def outer(*arguments: Any, **options: Any) -> Any:
            self._reach(f"before {name}")
            result = inner(*arguments, **options)
            self._reach(f"after {name}")
            return result

        return outer

    def _reach(self, point: str) -> None:
        if point != self._point:
            return
        if self._passes:
            self._passes -= 1
            return
        self._point, self.has_fired = None, True
        self._action()
