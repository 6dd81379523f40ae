"""What an attempt publishes in a replica in the lake; beside the output of a format."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import DataFrame

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import stored_key
from ..batch import SparkBatch
from ..sinks.publication import WriteAttempt
from ..sinks.tables import TableOutput

if TYPE_CHECKING:
    from .lake import LakeReplica

Table = TypeVar("Table")


@dataclass(frozen=True)
class ReplicaState:
    """A version of a replica, and which changes of its source it has.

    Attributes:
        version: the version of the Delta table, or the snapshot's id of Iceberg.
        tick_id: it has all changes up to this tick; those of later ticks only if `copied` has them.
        copied: the snapshot of its last copy, as `pg_snapshot` prints it.
        attempt: the attempt that made it.
    """

    version: int
    tick_id: int
    copied: str
    attempt: str


class ReplicaOutput(TableOutput[Table]):
    """What an attempt publishes in a replica; beside the output of a format.

    Attributes:
        changes: how many rows of a copy it changes; None if it has all rows.
        repairs: the replica that it was compared with; None if it follows the copy that it changes.
        grew_by: by how many rows the batch made the replica grow; None if nobody counts them, as
            after an earlier attempt.
    """

    grew_by: int | None = None
    changes: int | None = None
    repairs: ReplicaState | None = None

    def replicate(self, replica: "LakeReplica[Table]", batch: SparkBatch, copied: str) -> None:
        """Says what is replicated.

        Args:
            replica: the replica.
            batch: the batch.
            copied: the snapshot of the last copy.
        """
        name = self.batch
        self._replica, self._spark_batch = replica, batch
        self._row_key = stored_key(replica.deletes, replica.source.key)
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied
        self._is_again = False

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**super().properties, **self._replica.properties}

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
        self._replica.check(self._sink.properties_of(table))
        self.check_incarnation(table)
        return []

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table.

        Raises:
            InvalidArgument: if the table has a later batch, or changes would be merged into another
                copy than the one that they follow.
        """
        with self._sink.errors(self.batch):
            if self.changes is not None and not self._follows(state):
                raise InvalidArgument(
                    f"somebody has written {self._sink.name} meanwhile, or it is new",
                    "Run the batch again: it looks at the table as it is then.",
                )
            stored = self.last_batch(state)
            if stored is None or stored < self.batch.batch_id:
                return None
            for version, record in self.records(state):
                if record["app_id"] == self._app_id:
                    if record["batch_id"] == self.batch.batch_id:
                        self.version, self._is_again = version, True
                        return WriteAttempt(record["epoch"], record["attempt"])
                    break
        raise InvalidArgument(
            f"{self._sink.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate to another place.",
        )

    def replace(self, state: Table) -> bool:
        """Commits the changes; rows that an earlier attempt has appended are there already."""
        is_append = self.changes is not None and not self._row_key
        if is_append and self.published(state) is not None:
            return True
        is_done = super().replace(state)
        if self._is_again:
            self.grew_by = None
        return is_done

    def _follows(self, state: Table) -> bool:
        """Whether the changes fit the replica in this state."""
        record = self._replica.last_record(state)
        if record is None:  # Somebody else has written since, or nobody has.
            return False
        if self.repairs is not None and record["attempt"] != self.attempt.id:
            return bool(record["attempt"] == self.repairs.attempt)
        return bool(record["copied"] == self._copied)
