"""A replica of a table in the lake: what a copy or a batch comes to is one commit.

Each commit has a record of the consumer, the batch and the attempt. `sinks/publication.py` has the
proof that a stale attempt publishes nothing. Delta and Iceberg differ in how rows are committed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from ...client.errors import InvalidArgument
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..sinks.publication import WriteAttempt
from ..sinks.tables import TableOutput, TableSink

Table = TypeVar("Table")

_SOURCE = "pgque.replica_of"
_PATH_PART = re.compile(r"[\w$ -]+")


@dataclass(frozen=True)
class ReplicaState:
    """A version of a replica, and which changes of its source it has.

    Attributes:
        version: the version of the Delta table, or the snapshot's id of Iceberg.
        tick_id: it has all changes up to this tick; those of later ticks only if `copied` has them.
        copied: the snapshot of its last copy, as `pg_snapshot` prints it.
    """

    version: int
    tick_id: int
    copied: str


class LakeReplica(ABC, Generic[Table]):
    """The table of the lake that is the replica of a table.

    Args:
        source: the table.
        sink: the table of the lake.

    Attributes:
        location: of the replica, for people.

    Raises:
        InvalidArgument: if a folder cannot have the table's name.
    """

    location: str

    def __init__(self, source: SourceTable, sink: TableSink) -> None:
        for part in source.path:
            if not _PATH_PART.fullmatch(part):
                raise InvalidArgument(
                    f"{source.name} has a name that a folder cannot have",
                    "Rename the table, or leave it out.",
                )
        self.source = source
        self.sink = sink

    def overwrite(self, batch: SparkBatch, rows: DataFrame, copied: str) -> tuple[int | None, int]:
        """Makes rows the whole content of the replica, which is created if there is none.

        Args:
            batch: the batch in whose run the rows were copied.
            rows: the rows.
            copied: the snapshot in which they were read.

        Returns:
            The version of the table, and how many rows it has.

        Raises:
            InvalidArgument: if another table is there, or one of another incarnation.
            LeaseLost: if another owner took the batch over. The replica is as it was.
            BatchNotOpen: if the batch was acked meanwhile. The replica is as it was.
            StorageFailed: if files cannot be written. The replica is as it was.
        """
        with self.attempt(batch, copied) as output:
            output.begin()
            output.write_copy(rows)
            output.publish()
            return output.version, output.rows

    def merge(self, batch: SparkBatch, changes: DataFrame, copied: str) -> tuple[int | None, int]:
        """Applies changes by one commit.

        Args:
            batch: the batch.
            changes: what `net_changes` returns.
            copied: the snapshot of the last copy.

        Returns:
            The version of the table, and the number of keys that were changed; the version is None
            if there was nothing to change.

        Raises:
            As for `overwrite`.
        """
        with self.attempt(batch, copied) as output:
            output.begin()
            with output.staged(changes) as count:
                if not count:
                    return None, 0
                output.publish()
            return output.version, count

    def state(self) -> ReplicaState | None:
        """Returns the newest version with what it has.

        None if there is no table, or rows in it may be somebody else's.
        """
        found = self.newest()
        if found is None:
            return None
        version, record = found
        return ReplicaState(version, record["tick_id"], record["copied"])

    @abstractmethod
    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the newest version, and the record of the last commit that changed rows."""

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, copied: str
    ) -> AbstractContextManager["ReplicaOutput[Table]"]:
        """Begins an attempt to publish something in the replica."""

    @abstractmethod
    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """Returns the rows of a version."""


class ReplicaOutput(TableOutput[Table]):
    """What an attempt publishes in a replica; beside the output of a format."""

    def replicate(self, replica: LakeReplica[Table], batch: SparkBatch, copied: str) -> None:
        """Says what is replicated.

        Args:
            replica: the replica.
            batch: the batch.
            copied: the snapshot of the last copy.
        """
        name = self.batch
        self._source, self._spark_batch = replica.source, batch
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"
        self._replica_of = f"{name.queue}/{replica.source.name}"
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**super().properties, _SOURCE: self._replica_of}

    @property
    def record(self) -> dict[str, Any]:
        """What a commit records."""
        return {
            "app_id": self._app_id,
            "batch_id": self.batch.batch_id,
            "epoch": self.attempt.epoch,
            "attempt": self.attempt.id,
            "tick_id": self._tick_id,
            "copied": self._copied,
        }

    @abstractmethod
    def write_copy(self, rows: DataFrame) -> None:
        """Has tasks write the rows that are to be the whole content."""

    @abstractmethod
    def staged(self, changes: DataFrame) -> AbstractContextManager[int]:
        """Keeps changes for the block, in which they are published. Yields how many there are."""

    @abstractmethod
    def records(self, state: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""

    @abstractmethod
    def last_batch(self, state: Table) -> int | None:
        """Returns the last batch of this consumer that a state has."""

    def check(self, table: Table) -> list[str]:
        """Refuses a table that is not this replica, or is one of another incarnation."""
        name, source = self._sink.name, self.stored_properties(table).get(_SOURCE)
        if source != self._replica_of:
            raise InvalidArgument(
                f"{name} is {f'the replica of {source}' if source else 'no replica'}, and not of "
                f"{self._replica_of}",
                "Replicate to another place, or move that table away.",
            )
        self.check_incarnation(table)
        return []

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
        with self._sink.errors(self.batch):
            stored = self.last_batch(state)
            if stored is None or stored < self.batch.batch_id:
                return None
            for version, record in self.records(state):
                if record["app_id"] == self._app_id:
                    if record["batch_id"] == self.batch.batch_id:
                        self.version = version
                        return WriteAttempt(record["epoch"], record["attempt"])
                    break
        raise InvalidArgument(
            f"{self._sink.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate to another place.",
        )
