"""A replica of a table as a Delta table.

Each commit has an application transaction of the consumer, whose version is the batch.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import HARD
from ...client.replicas.source import SourceTable
from ..batch import SparkBatch
from ..sinks.delta.commit import RECORD, DeltaOutput
from ..sinks.delta.log import added, information, metadata_with, stored_files
from ..sinks.delta.log import commit as commit_version
from ..sinks.delta.merge import Rows, merge
from ..sinks.delta.replacing import replace_files, searched_files
from ..sinks.delta.schema import delta_fields, delta_schema, stored_fields
from ..sinks.delta.schema import spark_columns as stored_columns
from ..sinks.delta.sink import DeltaSink
from ..sinks.files.data_files import DataFile, stored_schema, write_files
from ..sinks.files.positions import rows_with_keys, write_changes
from ..sinks.files.storage import StorageFailed
from .altering import NewColumns
from .commit import Change, ReplicaOutput
from .lake import LakeReplica
from .location import DeltaReplicas
from .source import DELETED

# Commits that change no row.
_MAINTENANCE = (
    "ADD COLUMN",
    *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "CLUSTER BY", "COMPUTE STATS"),
    *("ADD FEATURE", "DROP FEATURE", "UPGRADE PROTOCOL"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
    *("ADD CONSTRAINT", "DROP CONSTRAINT", "UPDATE FIELD METADATA", "UPDATE TABLE METADATA"),
)
_CREATION = "CREATE TABLE"
# The property with the lower-case names of columns that only files have. If such a column is added,
# its old values must not reappear.
_DROPPED = "pgque.dropped"


class DeltaReplica(LakeReplica[DeltaTable]):
    """The Delta table that is the replica of a table.

    With deletion vectors, tasks write the new rows and find those that they replace. Without them,
    Delta's library merges: it reads and rewrites the files that may hold the keys, in the driver's
    process, and keeps the changes of the batch in memory.

    Raises:
        InvalidArgument: if the URL cannot be opened.
    """

    sink: DeltaSink

    def __init__(self, target: DeltaReplicas, source: SourceTable, owner: str) -> None:
        location = "/".join((target.base_dir.rstrip("/"), *source.path))
        sink = DeltaSink(location, storage_options=dict(target.storage_options or {}))
        super().__init__(source, sink, owner, target.deletes)
        self.location = sink.location
        self.deletion_vectors = target.deletion_vectors and bool(source.key)

    def newest(self) -> tuple[int | None, int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and what `last_change` returns for it."""
        try:
            table = self.sink.load()
        except TableNotFoundError:
            return None
        self.check(table.metadata().configuration)
        version, record = self.last_change(table)
        return None if version is None else table.version(), version, record

    def last_change(self, table: DeltaTable) -> tuple[int | None, dict[str, Any] | None]:
        """Returns the version of the last commit that changed rows, and its record."""
        for commit in self.commits(table):
            if commit.get("operation") == _CREATION:
                break
            if RECORD in commit or commit.get("operation") not in _MAINTENANCE:
                return commit["version"], commit.get(RECORD)
        return None, None

    def commits(self, table: DeltaTable) -> Iterator[dict[str, Any]]:
        """Yields the information of each commit of a table, the newest first, with its version.

        Delta's library reads many before it returns one, and holds Python's lock during that.
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
        vectors = replica.deletion_vectors
        super().__init__(replica.sink, batch.claim, columns, deletion_vectors=vectors)
        self.replicate(replica, batch, copied)
        self._commits = replica.commits
        for field, column in zip(self.fields, columns, strict=True):
            field["metadata"] = column.metadata

    def begin(self) -> DeltaTable:
        """Finds or creates the table."""
        table = super().begin()
        self.can_adopt = self._by_vectors = bool(self._row_key) and self.deletes_by_vectors(table)
        return table

    def touched(self, changes: DataFrame) -> DataFrame | None:
        """Returns the rows that have a key of the changes; without vectors, all rows."""
        if not self._by_vectors:
            return super().touched(changes)
        table, key = self.load(), self._replica.source.key
        with self.in_tasks(self._spark_batch):
            keys = write_files(changes.select(*key), self.storage, self.folder)
            self.keys = keys
            _, files = searched_files(self.storage, table, key)
            columns = stored_columns(table)
            return rows_with_keys(self._spark_batch.spark, self.storage, files, keys, columns)

    @contextmanager
    def staged(self, changes: DataFrame) -> Iterator[int]:
        """Keeps changes in files while the block runs. Yields their number."""
        if self._by_vectors:
            with self.in_tasks(self._spark_batch):
                self.files, keys = write_changes(
                    changes, self.storage, self.folder, self._row_key, DELETED
                )
            earlier, self.keys = self.keys or (), keys
            try:
                yield sum(file.rows for file in keys)
            finally:
                with suppress(StorageFailed):  # They are swept later.
                    self.storage.remove(file.path for file in (*earlier, *keys))
            return
        self.write(self._spark_batch, changes if self._row_key else changes.drop(DELETED))
        try:
            yield self.rows
        finally:
            if self._row_key:  # Otherwise these files are published themselves.
                self.remove_files()

    def check(self, table: DeltaTable) -> list[str]:
        """Refuses a table that is not this replica, or has partitions, unlike the files here."""
        super().check(table)
        if partitions := table.metadata().partition_columns:
            raise InvalidArgument(
                f"{self._sink.name} is partitioned by {', '.join(partitions)}, as no replica is",
                "Another program recreated it. Move it away: the next batch copies the table.",
            )
        return []

    def change_to(self, state: DeltaTable, columns: NewColumns) -> Change | None:
        """Returns how a version gets other columns; None if the table has rules."""
        if self.rules(state) or "v2Checkpoint" in (state.protocol().writer_features or ()):
            return None
        self._allow(state, columns.added)
        fields = delta_fields(columns.schema)
        for field, column in zip(fields, columns.schema, strict=True):
            field["metadata"] = column.metadata
        properties = dict(state.metadata().configuration)
        left = {*json.loads(properties.pop(_DROPPED, "[]")), *map(str.lower, columns.dropped)}
        is_again = any(x.name.lower() in left for x in columns.added)
        # Without column mapping, a column of the table is the one of its name in the files.
        if columns.values or columns.renamed or columns.retyped or is_again:
            files = stored_files(self.storage, state.version())
        else:
            files = []
            properties |= {_DROPPED: json.dumps(sorted(left))} if left else {}
        arrow = stored_schema(pa.schema(delta_schema(fields).to_arrow()))
        prepared = metadata_with(state, fields, properties), [x.removed() for x in files]
        return Change([x.searched(()) for x in files], arrow, prepared)

    def commit_change(
        self,
        state: DeltaTable,
        change: Change,
        copies: Sequence[DataFile],
        record: dict[str, Any],
    ) -> None:
        """Commits other columns, with copies in place of files."""
        metadata, removed = change.prepared
        first = information("REPLACE COLUMNS", **{RECORD: record})
        commit_version(state, self.storage, [first, metadata, *removed, *map(added, copies)])

    def records(self, state: DeltaTable) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""
        for commit in self._commits(state):
            if record := commit.get(RECORD):
                yield int(commit["version"]), record

    def last_batch(self, state: DeltaTable) -> int | None:
        """Returns the last batch of this consumer in a state."""
        return state.transaction_version(self._app_id)

    def commit(self, state: DeltaTable) -> bool:
        """Commits the files, if `state` is still the newest version."""
        self.check(state)
        if self._allow(state, self._schema):
            return False
        if self.adopted is not None or (self.changes is not None and self._by_vectors):
            self._commit_vectors(state)
            self.version = state.version() + 1
            return True
        properties = CommitProperties(
            custom_metadata={RECORD: self.record},
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

    def _commit_vectors(self, state: DeltaTable) -> None:
        """Commits the changes, or the adopted files, with deletion vectors."""
        if not self.deletes_by_vectors(state):
            raise StorageFailed(
                f"the properties of {self._sink.name} were changed while {self.batch} was written",
                "Run the batch again: it goes by the new ones.",
            )
        transactions = {self._app_id: self.batch.batch_id}
        if self.adopted is not None:
            actions = self.first_actions("WRITE", self.record, transactions)
            if stored_fields(state) != self.fields:
                actions.append(metadata_with(state, self.fields))
            replace_files(self.storage, state, self.adopted, self.gone, self.files, actions)
            return
        added = self.replace_rows(state, self._row_key, self.keys or (), self.record, transactions)
        self.grew_by = added if self._replica.deletes == HARD else None

    @staticmethod
    def _allow(state: DeltaTable, columns: t.StructType) -> bool:
        """Makes the table allow timestamps without a zone. Returns whether that was necessary."""
        kinds = {type(field.dataType) for field in columns}
        features = state.protocol().writer_features or ()
        is_lacking = t.TimestampNTZType in kinds and "timestampNtz" not in features
        if is_lacking:
            # The table's schema may only have this type in a version after the feature's.
            state.alter.add_feature(
                TableFeatures.TimestampWithoutTimezone,
                allow_protocol_versions_increase=True,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        return is_lacking
