"""A replica of a table as a Delta table: what a copy or a batch comes to is one commit.

Each commit has an application transaction of the consumer, whose version is the batch, and a record
of the attempt. `sinks/publication.py` has the proof that a stale attempt publishes nothing.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import BatchNotOpen, InvalidArgument, LeaseLost
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..cluster.lost_lease import cancelled_without_lease
from ..sinks.delta.output import DeltaOutput, DeltaTarget
from ..sinks.delta.schema import delta_fields, delta_statistics
from ..sinks.files.data_files import DataFile, write_files
from ..sinks.files.file_reader import ListedFile, read_table_files
from ..sinks.files.storage import Storage, written_for
from ..sinks.publication import BatchIdentity, WriteAttempt, publish
from ..sinks.tables import FOLDER, INCARNATION
from .net_changes import DELETED
from .source import spark_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable

_SOURCE = "pgque.replica_of"
_RECORD = "pgque"
# Commits that change no row.
_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD FEATURE", "SET TBLPROPERTIES")
# How many of the newest commits may be those.
_COMMITS = 100
_PATH_PART = re.compile(r"[\w$ -]+")
Commit = Callable[["DeltaTable", list[DataFile], Any], None]


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
        base_dir: the folder or URL in which each table has a folder, by its schema and name.
        source: the table.
        storage_options: as for `DeltaSink`.

    Raises:
        InvalidArgument: if a folder cannot have the table's name, or nothing can open the URL.
    """

    def __init__(
        self, base_dir: str | Path, source: SourceTable, storage_options: dict[str, str] | None
    ) -> None:
        for part in source.path:
            if not _PATH_PART.fullmatch(part):
                raise InvalidArgument(
                    f"{source.name} has a name that a folder cannot have",
                    "Rename the table, or leave it out.",
                )
        location = "/".join((str(base_dir).rstrip("/"), *source.path))
        self.source = source
        self._storage = Storage.of(location, storage_options)
        self._target = DeltaTarget(self._storage, "fail", "append", ())

    @property
    def location(self) -> str:
        """Where the table is."""
        return self._storage.location

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
        schema = self._schema(rows.schema)

        def commit(table: "DeltaTable", files: list[DataFile], properties: Any) -> None:
            from deltalake.transaction import AddAction, RemoveAction

            added: list[AddAction | RemoveAction] = [
                AddAction(file.path, file.size, {}, 0, True, delta_statistics(file))
                for file in files
            ]
            table.create_write_transaction(added, "overwrite", schema, commit_properties=properties)

        version, files = self._publish(batch, rows, copied, commit, keep=True)
        return version, sum(file.rows for file in files)

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

        def commit(table: "DeltaTable", files: list[DataFile], properties: Any) -> None:
            values = {f"`{each.name}`": f"source.`{each.name}`" for each in self.source.columns}
            stays = f"not source.`{DELETED}`"
            match = " and ".join(f"target.`{n}` = source.`{n}`" for n in self.source.key)
            table.merge(
                self._reader(files),
                match,
                source_alias="source",
                target_alias="target",
                commit_properties=properties,
            ).when_matched_delete(f"source.`{DELETED}`").when_matched_update(
                values, stays
            ).when_not_matched_insert(values, stays).execute()

        version, files = self._publish(batch, changes, copied, commit, keep=False)
        return version, sum(file.rows for file in files)

    def state(self) -> ReplicaState | None:
        """Returns the newest version with what it has.

        None if there is no table, or the newest commit is somebody else's.
        """
        not_found = self._target.not_found
        try:
            table = self._target.load()
        except not_found:
            return None
        for commit in table.history(_COMMITS):
            record = commit.get(_RECORD)
            if record:
                return ReplicaState(table.version(), record["tick_id"], record["copied"])
            if commit.get("operation") not in _MAINTENANCE:
                break
        return None

    def copied(self) -> str | None:
        """Returns the snapshot of its last copy; None as for `state`."""
        state = self.state()
        return None if state is None else state.copied

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Returns the rows of a version, which executors read in parallel.

        Args:
            spark: the session.
            version: the version; None for the newest.
        """
        table = self._load()
        if version is not None:
            table.load_as_version(version)
        schema = t.StructType.fromJson(json.loads(table.schema().to_json()))
        files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        listed = [ListedFile(file["path"], file["size_bytes"]) for file in files]
        return read_table_files(spark, self._storage, listed, schema)

    def _load(self) -> "DeltaTable":
        with self._target.existing():
            return self._target.load()

    def _publish(
        self, batch: SparkBatch, frame: DataFrame, copied: str, commit: Commit, *, keep: bool
    ) -> tuple[int | None, list[DataFile]]:
        """Writes files, and publishes them by a commit. Returns the version and the files.

        With `keep`, the files are those of the table; else they are removed after the commit, and
        there is none without files.
        """
        output = _Output(self, self._target, batch, copied, commit)
        identity, attempt = output.batch, output.attempt
        with self._target.errors(identity):
            self._create(identity)
            output.begin(self._target.load())
        with (
            cancelled_without_lease(batch.spark, batch.claim),
            written_for(self._target.name, identity),
        ):
            output.files = write_files(
                frame, self._storage, f"{FOLDER}/{batch.batch_id}-{attempt.epoch}-{attempt.id}"
            )
        if not keep and not output.files:
            return None, []
        try:
            publish(batch.claim, output)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            keep = False
            raise
        finally:
            if not keep:
                output.remove_files(self._storage)
        return output.version, output.files

    def _schema(self, columns: t.StructType) -> Any:
        from deltalake import Schema

        fields = delta_fields(columns)
        comments = {field.name: field.metadata for field in spark_columns(self.source)}
        for field in fields:
            field["metadata"] = comments[field["name"]]
        return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))

    def _create(self, batch: BatchIdentity) -> None:
        """Creates an empty table if there is none. Another attempt may do so at the same time."""
        from deltalake import DeltaTable

        if not self._storage.is_url:
            Path(self._storage.location).mkdir(parents=True, exist_ok=True)
        options = self._storage.delta_options()
        if DeltaTable.is_deltatable(self._storage.location, options):
            return
        DeltaTable.create(
            self._storage.location,
            schema=self._schema(spark_columns(self.source)),
            mode="ignore",
            configuration={
                INCARNATION: batch.incarnation,
                _SOURCE: f"{batch.queue}/{self.source.name}",
            },
            storage_options=options,
            raise_if_key_not_exists=False,
        )

    def _reader(self, files: list[DataFile]) -> pa.RecordBatchReader:
        schema = files[0].metadata.schema.to_arrow_schema()

        def batches() -> Iterator[pa.RecordBatch]:
            for file in files:
                source = self._storage.source(file.path)
                for batch in pq.ParquetFile(source).iter_batches():
                    yield batch.cast(schema)

        return pa.RecordBatchReader.from_batches(schema, batches())


class _Output(DeltaOutput):
    """The files of an attempt, to be published in a replica."""

    def __init__(
        self,
        replica: DeltaReplica,
        target: DeltaTarget,
        batch: SparkBatch,
        copied: str,
        commit: Commit,
    ) -> None:
        super().__init__(target, batch.claim, BatchIdentity.of(batch.claim), ())
        self._replica = replica
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied
        self._commit = commit
        name = self.batch
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"

    def check(self, table: "DeltaTable") -> list[str]:
        """Refuses a table that is not this replica, or is one of another incarnation."""
        name, source = self._target.name, table.metadata().configuration.get(_SOURCE)
        expected = f"{self.batch.queue}/{self._replica.source.name}"
        if source != expected:
            raise InvalidArgument(
                f"{name} is {f'the replica of {source}' if source else 'no replica'}, and not of "
                f"{expected}",
                "Replicate into another base_dir, or move that table away.",
            )
        self.check_incarnation(self.facts(table))
        return []

    def published(self, state: "DeltaTable") -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
        with self._target.errors(self.batch):
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
            f"{self._target.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate into another base_dir.",
        )

    def commit(self, state: "DeltaTable") -> bool:
        """Commits the files, if `state` is the newest version still."""
        from deltalake import CommitProperties, Transaction

        self.check(state)
        if self._lacks_feature(state):
            from deltalake import TableFeatures

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
        self._commit(state, self.files, properties)
        self.version = newest + 1
        return True

    def _lacks_feature(self, table: "DeltaTable") -> bool:
        """Whether the source has a timestamp without a zone, and the table may have none."""
        kinds = {type(field.dataType) for field in spark_columns(self._replica.source)}
        features = table.protocol().writer_features or ()
        return t.TimestampNTZType in kinds and "timestampNtz" not in features
