"""A replica of a table as a Delta table: what a copy or a batch comes to is one commit.

Each commit has an application transaction of the consumer, whose version is the batch, and a record
of the attempt. `sinks/publication.py` has the proof that a stale attempt publishes nothing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..sinks.delta.merge import Rows, merge
from ..sinks.delta.output import DeltaOutput
from ..sinks.delta.schema import delta_schema
from ..sinks.delta.sink import DeltaSink
from ..sinks.publication import WriteAttempt
from .source import DELETED, spark_columns
from .target import DeltaReplicas

_SOURCE = "pgque.replica_of"
_RECORD = "pgque"
# Commits that change no row.
_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD FEATURE", "SET TBLPROPERTIES")
# How many of the newest commits may be those.
_COMMITS = 100
_PATH_PART = re.compile(r"[\w$ -]+")
Commit = Callable[[DeltaTable, "_Output", CommitProperties], None]


@dataclass(frozen=True)
class ReplicaState:
    """A version of a replica, and which changes of its source it has.

    Attributes:
        version: the version of the Delta table.
        tick_id: it has all changes up to this tick; those of later ticks only if `copied` has them.
        copied: the snapshot of its last copy, as `pg_snapshot` prints it.
    """

    version: int
    tick_id: int
    copied: str


class DeltaReplica:
    """The Delta table that is the replica of a table.

    Args:
        target: where replicas are.
        source: the table.

    Raises:
        InvalidArgument: if a folder cannot have the table's name, or nothing can open the URL.
    """

    def __init__(self, target: DeltaReplicas, source: SourceTable) -> None:
        for part in source.path:
            if not _PATH_PART.fullmatch(part):
                raise InvalidArgument(
                    f"{source.name} has a name that a folder cannot have",
                    "Rename the table, or leave it out.",
                )
        location = "/".join((target.base_dir.rstrip("/"), *source.path))
        self.source = source
        self.sink = DeltaSink(location, storage_options=dict(target.storage_options or {}))

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

        def commit(table: DeltaTable, output: _Output, properties: CommitProperties) -> None:
            schema = delta_schema(output.fields)
            table.create_write_transaction(
                output.added(), "overwrite", schema, commit_properties=properties
            )

        output = _Output(self, batch, copied, commit)
        output.begin()
        output.write(batch, rows)
        output.publish()
        return output.version, output.rows

    def merge(self, batch: SparkBatch, changes: DataFrame, copied: str) -> tuple[int | None, int]:
        """Applies changes by one commit.

        Delta's library reads the files that may hold the keys and writes them anew, in the driver's
        process; it holds the changes of the batch in memory.

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

        def commit(table: DeltaTable, output: _Output, properties: CommitProperties) -> None:
            rows = Rows(output.storage, output.files)
            merge(table, rows, self.source.key, properties, DELETED)

        output = _Output(self, batch, copied, commit)
        output.begin()
        output.write(batch, changes)
        if not output.files:
            return None, 0
        try:
            output.publish()
        finally:
            output.remove_files()
        return output.version, output.rows

    def state(self) -> ReplicaState | None:
        """Returns the newest version with what it has.

        None if there is no table, or the newest commit is somebody else's.
        """
        try:
            table = self.sink.load()
        except TableNotFoundError:
            return None
        for commit in table.history(_COMMITS):
            record = commit.get(_RECORD)
            if record:
                return ReplicaState(table.version(), record["tick_id"], record["copied"])
            if commit.get("operation") not in _MAINTENANCE:
                break
        return None


class _Output(DeltaOutput):
    """The files of an attempt, to be published in a replica."""

    def __init__(
        self, replica: DeltaReplica, batch: SparkBatch, copied: str, commit: Commit
    ) -> None:
        columns = spark_columns(replica.source)
        super().__init__(replica.sink, batch.claim, columns, key=())
        for field, column in zip(self.fields, columns, strict=True):
            field["metadata"] = column.metadata
        self._replica = replica
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied
        self._commit = commit
        name = self.batch
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"
        self._replica_of = f"{name.queue}/{replica.source.name}"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**super().properties, _SOURCE: self._replica_of}

    def check(self, table: DeltaTable) -> list[str]:
        """Refuses a table that is not this replica, or is one of another incarnation."""
        name, source = self._sink.name, table.metadata().configuration.get(_SOURCE)
        if source != self._replica_of:
            raise InvalidArgument(
                f"{name} is {f'the replica of {source}' if source else 'no replica'}, and not of "
                f"{self._replica_of}",
                "Replicate into another base_dir, or move that table away.",
            )
        self.check_incarnation(table)
        return []

    def published(self, state: DeltaTable) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
        with self._sink.errors(self.batch):
            stored = state.transaction_version(self._app_id)
            if stored is None or stored < self.batch.batch_id:
                return None
            for commit in state.history():
                record = commit.get(_RECORD) or {}
                if record.get("app_id") == self._app_id:
                    if record["batch_id"] == self.batch.batch_id:
                        self.version = int(commit["version"])
                        return WriteAttempt(record["epoch"], record["attempt"])
                    break
        raise InvalidArgument(
            f"{self._sink.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate into another base_dir.",
        )

    def commit(self, state: DeltaTable) -> bool:
        """Commits the files, if `state` is the newest version still."""
        self.check(state)
        if self._lacks_feature(state):
            # The table's schema may have this type only in a later version than the feature.
            state.alter.add_feature(
                TableFeatures.TimestampWithoutTimezone,
                allow_protocol_versions_increase=True,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
            return False
        record = {
            "app_id": self._app_id,
            "batch_id": self.batch.batch_id,
            "epoch": self.attempt.epoch,
            "attempt": self.attempt.id,
            "tick_id": self._tick_id,
            "copied": self._copied,
        }
        properties = CommitProperties(
            custom_metadata={_RECORD: record},
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, self.batch.batch_id)],
        )
        newest = state.version()
        self._commit(state, self, properties)
        self.version = newest + 1
        return True

    def _lacks_feature(self, table: DeltaTable) -> bool:
        """Whether the source has a timestamp without a zone, and the table may have none."""
        kinds = {type(field.dataType) for field in spark_columns(self._replica.source)}
        features = table.protocol().writer_features or ()
        return t.TimestampNTZType in kinds and "timestampNtz" not in features
