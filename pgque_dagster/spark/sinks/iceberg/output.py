"""Publishes the files of an attempt in an Iceberg table by one commit, as `publication.py` demands.

A commit demands of the catalog that the branch `main` is still at the snapshot that was read before
the lease was renewed. The retries of pyiceberg, which would repeat it on a newer snapshot, are
switched off. Each snapshot names its batch and attempt in its summary.

The commit of a vector also sets a property of the table for the consumer of each shard: its newest
batch, and the vector's id.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import FixedType, TimeType, UUIDType
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ....client.read_batch import ReadBatch
from ....client.sharded import ShardedClaim
from ....client.vector import Vector
from ..files.data_files import ICEBERG_TYPES, DataFile, check_columns, stored_schema
from ..files.file_reader import ListedFile
from ..files.storage import Storage
from ..modes import BATCH_ID
from ..publication import WriteAttempt
from ..tables import TableOutput, TableSink
from .catalog import file_options

_BATCH = "pgque.batch"
_EPOCH = "pgque.epoch"
_ATTEMPT = "pgque.attempt"
_NEWEST = "pgque.newest."
_NAMES = "schema.name-mapping.default"
FILES_SINCE = "pgque.schema"
# What a compaction keeps of the summary of the snapshot before it.
RECORD = "pgque.replica"
_RETRIES = "commit.retry.num-retries"
_NEW_TABLE = {
    "commit.manifest-merge.enabled": "true",
    # Each commit writes a file that lists all snapshots. By default, the newest 100 files stay.
    "write.metadata.delete-after-commit.enabled": "true",
}
# The sequence number of the first commit to a table.
_FIRST = 1
# By how much the clocks of the database and of writers of the table may differ.
_CLOCKS = timedelta(hours=1)


class IcebergOutput(TableOutput[Table]):
    """The files of an attempt, to be published in an Iceberg table of a catalog."""

    conflict = CommitFailedException

    def __init__(
        self,
        sink: TableSink,
        name: str,
        catalog: Catalog,
        claim: ReadBatch,
        schema: StructType,
        spark: SparkSession,
    ) -> None:
        super().__init__(sink, claim, schema)
        self._name = name
        self._catalog = catalog
        self._columns = iceberg_columns(spark, schema)

    def load(self) -> Table:
        """Loads the newest state of the table."""
        return self._catalog.load_table(self._name)

    def create(self) -> Table:
        """Creates the table, or loads the one that another attempt created at the same time."""
        namespace = self._name.rpartition(".")[0]
        try:
            self._catalog.create_namespace(namespace)
        except Exception:
            # pyiceberg's catalog in a database raises the database's error.
            if not self._catalog.namespace_exists(namespace):
                raise
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self._name,
                schema=self._columns,
                location=_new_location(self._sink.storage, self._name),
                properties={**self.properties, **_NEW_TABLE},
            )
        return self.load()

    def begin(self) -> Table:
        """Finds or creates the table, and checks that it fits, before anything is written."""
        table = super().begin()
        self.storage = storage_of(table, self._sink.storage)
        return table

    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the table's id, which a commit demands as well, and its newest metadata file."""
        return table.metadata.table_uuid, table.metadata_location

    def published_batch(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose snapshot is the newest one of the batch."""
        for snapshot in history(state):
            summary = summary_of(snapshot)
            if summary.get(_BATCH) == self.batch.record:
                self.version = snapshot.snapshot_id
                return WriteAttempt(int(summary[_EPOCH]), summary[_ATTEMPT])
        return None

    def version_of(self, state: Table) -> int:
        """Returns the id of the newest snapshot."""
        return newest_snapshot(state)

    def columns(self, table: Table) -> StructType:
        """Returns the columns of the table."""
        return spark_columns(table)

    def rules(self, table: Table) -> list[str]:
        """Returns what rows from here may break in the table."""
        fields = table.schema().fields
        return [
            *(f"partitions by {field.name}" for field in table.spec().fields),
            *(f"NOT NULL for {field.name}" for field in fields if field.required),
            *foreign_types(table),
        ]

    def commit(self, state: Table) -> bool:
        """Commits the rows, with the columns that the table lacks."""
        may_have_rows = self._may_have_rows(state)
        for_one_commit(state)
        lacks_columns = self.check(state)
        change = state.transaction()
        if lacks_columns:
            with change.update_schema() as update:
                update.union_by_name(self._columns)
        name_columns(change)
        if isinstance(self._claim, ShardedClaim):
            change.set_properties(self.properties)
        if isinstance(self._claim, Vector):
            change.set_properties(newest_batches(self._claim))
        record = {
            _BATCH: self.batch.record,
            _EPOCH: str(self.attempt.epoch),
            _ATTEMPT: self.attempt.id,
        }
        if may_have_rows:
            # Files that have other rows as well, because somebody compacted them, are rewritten.
            change.delete(f"{BATCH_ID} = {self.batch.batch_id}", snapshot_properties=record)
        with change.update_snapshot(snapshot_properties=record).merge_append() as append:
            for entry in entries_of(change, state.location(), self.files):
                append.append_data_file(entry)
        self.version = committed_snapshot(change)
        return True

    def _may_have_rows(self, table: Table) -> bool:
        """Says whether an attempt at this batch was published, or its snapshot may have expired."""
        if isinstance(self._claim, Vector):
            return False
        if self.published(table) is not None:
            return True
        kept = list(history(table))
        if not kept or kept[-1].sequence_number == _FIRST:
            return False
        oldest = datetime.fromtimestamp(kept[-1].timestamp_ms / 1000, UTC)
        return oldest > self._claim.info().end - _CLOCKS


def for_one_commit(table: Table) -> None:
    """Has commits fail if the newest snapshot is another one than that of this object.

    The object also forgets the older snapshots, because pyiceberg copies all of them at each of the
    many steps of a commit. The table itself stays what it is.
    """
    metadata = table.metadata
    newest = [x for x in metadata.snapshots if x.snapshot_id == metadata.current_snapshot_id]
    table.metadata = metadata.model_copy(
        update={
            "properties": {**metadata.properties, _RETRIES: "0"},
            "snapshots": newest,
            "snapshot_log": [],
            "metadata_log": [],
        }
    )


def name_columns(change: Transaction) -> None:
    """Has readers find columns by their names, since files have no ids of them."""
    metadata = change.table_metadata
    if metadata.name_mapping() is None:
        names = metadata.schema().name_mapping.model_dump_json()
        change.set_properties({_NAMES: names})


def committed_snapshot(change: Transaction) -> int:
    """Commits a change. Returns the id of the newest snapshot."""
    return newest_snapshot(change.commit_transaction())


def newest_snapshot(table: Table) -> int:
    """Returns the id of the newest snapshot of a table that has one."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def newest_batches(claim: Vector) -> dict[str, str]:
    """Returns the properties of a table that has a vector, for the consumers of its members."""
    return {
        f"{_NEWEST}{claim.consumer_of(shard)}": f"{batch.batch_id} {claim.batch_id}"
        for shard, batch in claim.members.items()
    }


def vectors_in(table: Table) -> dict[str, tuple[int, int]]:
    """Returns for each consumer of a shard its newest batch, and the id of the batch's vector."""
    found = {}
    for key, value in table.properties.items():
        if key.startswith(_NEWEST):
            batch, vector = map(int, value.split())
            found[key.removeprefix(_NEWEST)] = (batch, vector)
    return found


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Returns the properties of a snapshot."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def history(table: Table) -> Iterator[Snapshot]:
    """Yields the snapshots of the branch `main` that the table still has, the newest first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = known.get(parent) if parent is not None else None


def entries_of(change: Transaction, location: str, files: Iterable[DataFile]) -> Iterator[Entry]:
    """Yields files as the table at a location has them."""
    # pyiceberg creates it for each caller.
    metadata = change.table_metadata
    schema = metadata.schema()
    plan = compute_statistics_plan(schema, metadata.properties)
    ids = parquet_path_to_id_mapping(schema)
    for file in files:
        yield Entry.from_args(
            content=DataFileContent.DATA,
            file_path=f"{location.rstrip('/')}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **data_file_statistics_from_parquet_metadata(
                file.metadata, plan, ids
            ).to_serialized_dict(),
        )


def iceberg_columns(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Returns the columns of a DataFrame as its files have them, if Iceberg has their types."""
    check_columns(schema, ICEBERG_TYPES, "Iceberg")
    # Without rows by its plan, so that Spark runs no job.
    stored = stored_schema(spark.createDataFrame([], schema).limit(0).toArrow().schema)
    comments = [column.metadata.get("comment") for column in schema]
    return pa.schema(
        [
            field.with_metadata({"doc": comment}) if comment else field
            for field, comment in zip(stored, comments, strict=True)
        ]
    )


def spark_columns(table: Table) -> StructType:
    """Returns the columns of a table as Spark has them."""
    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)


def foreign_types(table: Table) -> list[str]:
    """Returns the types in a table that DataFrames do not have, with their columns."""
    schema = table.schema()
    kinds = {name: schema.find_type(name) for name in schema.column_names}
    foreign = (FixedType, TimeType, UUIDType)
    return [f"type {kind} of {name}" for name, kind in kinds.items() if isinstance(kind, foreign)]


def why_unreadable(table: Table, tasks: Sequence[FileScanTask]) -> str | None:
    """Returns what a reader of the files alone would read wrongly; None if there is nothing.

    Columns count from the schema on that the property `FILES_SINCE` of the table names: all older
    files were replaced.
    """
    root = _root(table)
    foreign = [task.file.file_path for task in tasks if not task.file.file_path.startswith(root)]
    if foreign:
        return f"files outside its location, such as {foreign[0]}"
    if any(task.delete_files for task in tasks):
        return "files that list deleted rows"
    # Older files have these under another name, or another column under theirs.
    now = _ids(table.schema())
    names = {number: name for name, number in now.items()}
    since = int(table.properties.get(FILES_SINCE, 0))
    ever = [
        pair
        for number, schema in table.schemas().items()
        if number >= since
        for pair in _ids(schema).items()
    ]
    renamed = {names[number] for name, number in ever if names.get(number, name) != name}
    reused = {name for name, number in ever if now.get(name, number) != number}
    if changed := sorted(renamed | reused):
        return f"columns that were renamed, or dropped and added again: {', '.join(changed)}"
    return None


def storage_of(table: Table, storage: Storage) -> Storage:
    """Returns the storage of a table, which is a path as it stands after `file:`.

    Args:
        table: the table.
        storage: that of the warehouse, with its options.
    """
    location = table.location()
    if location.startswith("file:"):
        location = urlsplit(location).path
    return Storage.of(location, file_options(storage))


def _new_location(storage: Storage, name: str) -> str:
    """Returns a new folder: another catalog may have a table of this name in the same warehouse."""
    folder = f"{storage.location}/{name.replace('.', '/')}-{uuid.uuid4().hex}"
    # Not Path.as_uri(): pyiceberg does not decode what that encodes.
    return folder if storage.is_url else f"file://{folder}"


def listed(table: Table, files: Sequence[Entry]) -> list[ListedFile]:
    """Returns files of a table as its reader takes them."""
    return [ListedFile(path_in(table, file.file_path), file.file_size_in_bytes) for file in files]


def path_in(table: Table, path: str) -> str:
    """Returns the path of a file, relative to the location of its table."""
    return path.removeprefix(_root(table))


def _root(table: Table) -> str:
    return table.location().rstrip("/") + "/"


def _ids(schema: Schema) -> dict[str, int]:
    return {name: schema.find_field(name).field_id for name in schema.column_names}
