"""A replica of a table as a Delta table.

Each commit has an application transaction of the consumer, whose version is the batch.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import HARD
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..sinks.delta.merge import Rows, merge
from ..sinks.delta.output import DeltaOutput
from ..sinks.delta.schema import delta_schema
from ..sinks.delta.sink import DeltaSink
from .lake import LakeReplica
from .output import ReplicaOutput
from .source import DELETED
from .target import DeltaReplicas

_RECORD = "pgque"
# Commits that change no row.
_MAINTENANCE = (
    *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "CLUSTER BY", "COMPUTE STATS"),
    *("ADD FEATURE", "DROP FEATURE", "UPGRADE PROTOCOL"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
    *("ADD CONSTRAINT", "DROP CONSTRAINT", "UPDATE FIELD METADATA", "UPDATE TABLE METADATA"),
)
_CREATION = "CREATE TABLE"


class DeltaReplica(LakeReplica[DeltaTable]):
    """The Delta table that is the replica of a table.

    Delta's library merges: it reads the files that may hold the keys and writes them again, in the
    driver's process; it holds the changes of the batch in memory.

    Args:
        target: where replicas are.
        source: the table.
        owner: who replicates it.

    Raises:
        InvalidArgument: if nothing can open the URL.
    """

    sink: DeltaSink

    def __init__(self, target: DeltaReplicas, source: SourceTable, owner: str) -> None:
        location = "/".join((target.base_dir.rstrip("/"), *source.path))
        sink = DeltaSink(location, storage_options=dict(target.storage_options or {}))
        super().__init__(source, sink, owner, target.deletes)
        self.location = sink.location

    def newest(self) -> tuple[int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and the record of the last commit that changed rows."""
        try:
            table = self.sink.load()
        except TableNotFoundError:
            return None
        self.check(table.metadata().configuration)
        last = self._last_commit(table)
        is_new = not last or last.get("operation") == _CREATION
        return (None, None) if is_new else (table.version(), last.get(_RECORD))

    def last_record(self, table: DeltaTable) -> dict[str, Any] | None:
        """Returns the record of the last commit that changed rows."""
        return self._last_commit(table).get(_RECORD)

    def _last_commit(self, table: DeltaTable) -> dict[str, Any]:
        """Returns the last commit that is more than maintenance; an empty one if none is found."""
        for commit in self.commits(table):
            if _RECORD in commit or commit.get("operation") not in _MAINTENANCE:
                return commit
        return {}

    def commits(self, table: DeltaTable) -> Iterator[dict[str, Any]]:
        """Yields what each commit of a table says of itself, the newest first, with its version.

        Delta's library reads many before it returns one, and holds Python's lock meanwhile.
        """
        for version in range(table.version(), -1, -1):
            text = self.sink.storage.read(f"_delta_log/{version:020}.json")
            if text is None:  # Delta removes old ones.
                return
            lines = (json.loads(line) for line in text.splitlines() if b"commitInfo" in line)
            info: dict[str, Any] = next(
                (each["commitInfo"] for each in lines if "commitInfo" in each), {}
            )
            yield {**info, "version": version}

    @contextmanager
    def attempt(self, batch: SparkBatch, copied: str, columns: t.StructType) -> Iterator["_Output"]:
        """Begins an attempt to publish something in the replica."""
        yield _Output(self, batch, copied, columns)

    def read(self, spark: SparkSession, version: int | None) -> DataFrame:
        """Returns the rows of a version."""
        return self.sink.read(spark, version)


class _Output(ReplicaOutput[DeltaTable], DeltaOutput):
    """The files of an attempt, to be published in a replica."""

    def __init__(
        self, replica: DeltaReplica, batch: SparkBatch, copied: str, columns: t.StructType
    ) -> None:
        super().__init__(replica.sink, batch.claim, columns, key=())
        self.replicate(replica, batch, copied)
        self._commits = replica.commits
        for field, column in zip(self.fields, columns, strict=True):
            field["metadata"] = column.metadata

    def write_copy(self, rows: DataFrame) -> None:
        """Has tasks write the rows that are to be the whole content."""
        self.write(self._spark_batch, rows)

    @contextmanager
    def staged(self, changes: DataFrame) -> Iterator[int]:
        """Keeps changes in files for the block. Yields how many there are."""
        self.write(self._spark_batch, changes if self._row_key else changes.drop(DELETED))
        try:
            yield self.rows
        finally:
            if self._row_key:  # Else they are those that are published.
                self.remove_files()

    def check(self, table: DeltaTable) -> list[str]:
        """Refuses a table that is not this replica, or has partitions, which files here lack."""
        super().check(table)
        if partitions := table.metadata().partition_columns:
            raise InvalidArgument(
                f"{self._sink.name} is partitioned by {', '.join(partitions)}, which no replica is",
                "Somebody else wrote it anew. Move it away: the next batch copies the table.",
            )
        return []

    def records(self, state: DeltaTable) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""
        for commit in self._commits(state):
            if record := commit.get(_RECORD):
                yield int(commit["version"]), record

    def last_batch(self, state: DeltaTable) -> int | None:
        """Returns the last batch of this consumer that a state has."""
        return state.transaction_version(self._app_id)

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
        properties = CommitProperties(
            custom_metadata={_RECORD: self.record},
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, self.batch.batch_id)],
        )
        newest = state.version()
        if self.changes is not None and self._row_key:
            rows = Rows(self.storage, self.files)
            added = merge(state, rows, self._row_key, properties, DELETED)
            self.grew_by = added if self._replica.deletes == HARD else None
        else:
            mode = "overwrite" if self.changes is None else "append"
            state.create_write_transaction(
                self.added(), mode, delta_schema(self.fields), commit_properties=properties
            )
            self.grew_by = self.rows
        self.version = newest + 1
        return True

    def _lacks_feature(self, table: DeltaTable) -> bool:
        """Whether the source has a timestamp without a zone, and the table may have none."""
        kinds = {type(field.dataType) for field in self._schema}
        features = table.protocol().writer_features or ()
        return t.TimestampNTZType in kinds and "timestampNtz" not in features
