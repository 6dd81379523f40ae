"""Publishes the files of an attempt in an Iceberg table in one commit, as `publication.py` demands.

A commit demands from the catalog that the branch `main` is still at the snapshot that was read
before the lease was renewed. pyiceberg's retries, which would repeat it on a newer snapshot, are
switched off. Each snapshot names its batch and attempt in its summary.

With a key, tasks find the rows that are replaced, and the commit lists their positions as deleted.

The commit of a vector also sets a property of the table for the consumer of each shard: its newest
batch, and the vector's id.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ....client import InvalidArgument
from ....client.read_batch import ReadBatch
from ..files.data_files import DataFile, stored_schema
from ..files.positions import find_positions
from ..files.storage import Storage, StorageFailed
from ..lake_table import LakeTable
from ..modes import BATCH_ID
from ..publication import WriteAttempt
from ..table_output import TableOutput
from .deletes import unneeded, write_deletes
from .snapshot import DELETES_OLD, check_version, commit_snapshot
from .table_files import (
    foreign_types,
    iceberg_columns,
    path_in,
    planned,
    root_of,
    searched,
    spark_columns,
    storage_of,
    why_unreadable,
)

_METRICS = "write.metadata.metrics.default"
_BATCH = "pgque.batch"
_EPOCH = "pgque.epoch"
_ATTEMPT = "pgque.attempt"
_NEWEST = "pgque.newest."
# The property of a snapshot with the record of the replica's last commit that changed rows.
RECORD = "pgque.replica"
# The table's property with that record, and the sequence number of the newest snapshot that has it.
_LAST = "pgque.last_commit"
_RETRIES = "commit.retry.num-retries"
_NEW_TABLE = {
    "commit.manifest-merge.enabled": "true",
    # Each commit writes a file that lists all snapshots. By default, the newest 100 files stay.
    DELETES_OLD: "true",
}
# The sequence number of the first commit to a table.
_FIRST = 1
# The maximum difference between the clocks of the database and of the table's writers.
_CLOCKS = timedelta(hours=1)


class IcebergOutput(TableOutput[Table]):
    """The files of an attempt, to be published in an Iceberg table of a catalog.

    Attributes:
        for_state: the files written for the state on which a commit was last tried.
    """

    for_state: Sequence[str] = ()
    conflict = CommitFailedException

    def __init__(
        self,
        sink: LakeTable,
        name: str,
        catalog: Catalog,
        claim: ReadBatch,
        schema: StructType,
        spark: SparkSession,
        key: Sequence[str] = (),
    ) -> None:
        super().__init__(sink, claim, schema, key)
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
        change = table.transaction()
        self.fit_columns(change, table)
        self.arrow = stored_schema(change.table_metadata.schema().as_arrow())
        return table

    def fit_columns(self, change: Transaction, state: Table) -> None:
        """Gives the table the columns that it lacks."""
        if self.check(state):
            with change.update_schema() as update:
                update.union_by_name(self._columns)

    def check_ids(self, change: Transaction) -> None:
        """Raises `StorageFailed` if columns do not have the ids with which files were written."""
        schema = stored_schema(change.table_metadata.schema().as_arrow())
        # Comments may differ.
        now, had = (
            {x.name: (x.type, (x.metadata or {}).get(b"PARQUET:field_id")) for x in columns}
            for columns in (schema, self.arrow or ())
        )
        if not all(now.get(name, column) == column for name, column in had.items()):
            raise StorageFailed(
                f"the columns of {self._sink.name} were changed while {self.batch} was written",
                "Run the batch again: it goes by the new ones.",
            )

    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the table's id, which a commit demands as well, and its newest metadata file."""
        return table.metadata.table_uuid, table.metadata_location

    def attempts_in(self, state: Table) -> Iterator[tuple[int, str, WriteAttempt]]:
        """Yields id, record and attempt of the snapshots of a state, the newest first."""
        return attempts_in(state)

    def check(self, table: Table) -> list[str]:
        """Returns the columns that the table lacks."""
        if self._key:
            check_version(table)
        return super().check(table)

    def columns(self, table: Table) -> StructType:
        """Returns the columns of the table."""
        return spark_columns(table)

    def rules(self, table: Table) -> list[str]:
        """Returns the rules of the table that rows from here may break."""
        fields = table.schema().fields
        return [
            *(f"partitions by {field.name}" for field in table.spec().fields),
            *(f"NOT NULL for {field.name}" for field in fields if field.required),
            *foreign_types(table),
        ]

    def commit(self, state: Table) -> bool:
        """Commits the rows, with the columns that the table lacks."""
        may_have_rows = not self._key and self._may_have_rows(state)
        for_one_commit(state)
        change = state.transaction()
        self.fit_columns(change, state)
        self.check_ids(change)
        wanted, known = {**self.properties, **newest_batches(self.batch)}, state.properties
        if new := {key: value for key, value in wanted.items() if known.get(key) != value}:
            change.set_properties(new)
        record = {
            _BATCH: self.batch.record,
            _EPOCH: str(self.attempt.epoch),
            _ATTEMPT: self.attempt.id,
        }
        if self._key:
            self.version = self._commit_merge(state, change.table_metadata, record)
            return True
        if may_have_rows:
            # Files that also have other rows, because they were compacted, are rewritten.
            change.delete(f"{BATCH_ID} = {self.batch.batch_id}", snapshot_properties=record)
        with change.update_snapshot(snapshot_properties=record).merge_append() as append:
            for entry in entries_of(change.table_metadata, self.files):
                append.append_data_file(entry)
        self.version = committed_snapshot(change)
        return True

    def _commit_merge(self, state: Table, wanted: TableMetadata, record: dict[str, str]) -> int:
        """Commits the rows in place of those with their keys. Returns the id of the snapshot."""
        batch, tasks = self._spark_batch, planned(state)
        if problem := why_unreadable(state, tasks):
            raise InvalidArgument(
                f"{self._sink.name} has {problem}, so rows cannot be found by their keys",
                "Store into another table.",
            )
        with self.in_tasks(batch):
            listed = searched(state, tasks)
            found = find_positions(batch.spark, self.storage, listed, self.files, self._key)
        deletes, gone = self.delete_positions(state, tasks, found)
        return commit_snapshot(
            state,
            wanted,
            added=[*entries_of(wanted, self.files), *deletes],
            gone=gone | unneeded(tasks, gone),
            summary=record,
        )

    def delete_positions(
        self, state: Table, tasks: Sequence[FileScanTask], found: Mapping[str, BitMap64]
    ) -> tuple[list[Entry], set[str]]:
        """Writes the positions of rows that are deleted, in place of those for an earlier state.

        Arguments and result are as for `write_deletes`.
        """
        self.remove_for_state()
        deletes, gone = write_deletes(self.storage, root_of(state), self.folder, found, tasks)
        self.for_state = [path_in(state, file.file_path) for file in deletes]
        return deletes, gone

    def remove_for_state(self) -> None:
        """Removes the files that were written for the last state."""
        with suppress(StorageFailed):
            self.storage.remove(self.for_state)

    def remove_files(self) -> None:
        """Removes files that will not be read."""
        super().remove_files()
        self.remove_for_state()

    def _may_have_rows(self, table: Table) -> bool:
        """Returns whether an attempt at this batch was published, or may have expired."""
        if self.batch.is_final:
            return False
        if self.published(table) is not None:
            return True
        kept = list(history(table))
        if not kept or kept[-1].sequence_number == _FIRST:
            return False
        oldest = datetime.fromtimestamp(kept[-1].timestamp_ms / 1000, UTC)
        return oldest > self.batch.info().end - _CLOCKS


def for_one_commit(table: Table) -> None:
    """Makes commits fail unless this object's snapshot is still the newest one.

    The object also forgets the older snapshots, because pyiceberg copies all of them in each of the
    many steps of a commit. The table itself does not change.
    """
    metadata = table.metadata
    newest = [x for x in metadata.snapshots if x.snapshot_id == metadata.current_snapshot_id]
    table.metadata = metadata.model_copy(
        update={
            "properties": {**metadata.properties, _RETRIES: "0"},
            "snapshots": newest,
            "snapshot_log": [],
        }
    )


def committed_snapshot(change: Transaction) -> int:
    """Commits a change. Returns the id of the newest snapshot."""
    return newest_snapshot(change.commit_transaction())


def newest_snapshot(table: Table) -> int:
    """Returns the id of the newest snapshot of a table that has one."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def newest_batches(claim: ReadBatch) -> dict[str, str]:
    """Returns a vector's properties in the table, for the consumers of its members."""
    return {
        f"{_NEWEST}{batch.origin}": f"{batch.batch_id} {claim.batch_id}"
        for batch in (claim.members.values() if claim.is_final else ())
    }


def vectors_in(table: Table) -> dict[str, tuple[int, int]]:
    """Returns for each consumer of a shard its newest batch, and the id of the batch's vector."""
    found = {}
    for key, value in table.properties.items():
        if key.startswith(_NEWEST):
            batch, vector = map(int, value.split())
            found[key.removeprefix(_NEWEST)] = (batch, vector)
    return found


def attempts_in(table: Table) -> Iterator[tuple[int, str, WriteAttempt]]:
    """Yields id, record and attempt of the snapshots of a table, the newest first."""
    for snapshot in history(table):
        summary = summary_of(snapshot)
        if _BATCH in summary:
            attempt = WriteAttempt(int(summary[_EPOCH]), summary[_ATTEMPT])
            yield snapshot.snapshot_id, summary[_BATCH], attempt


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


def last_change(table: Table) -> tuple[int | None, dict[str, Any] | None]:
    """Returns the snapshot of the last commit that changed rows of a replica, and its record.

    There is no record if rows may be another program's.
    """
    last = json.loads(table.properties.get(_LAST, '{"number": null}'))
    number, found = last["number"], None
    for snapshot in history(table):
        if record := summary_of(snapshot).get(RECORD):
            return snapshot.snapshot_id, json.loads(record)
        # Another engine's compaction changes no row.
        if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
            return snapshot.snapshot_id, None
        # Our snapshot may have expired: then this is the first one after it.
        is_next = number is not None and snapshot.sequence_number == number + 1
        found = last.get("record") if is_next else None
    return table.metadata.current_snapshot_id, found


def properties_with(record: Mapping[str, Any], metadata: TableMetadata) -> dict[str, str]:
    """Returns the properties of a table whose next snapshot has a record."""
    number = metadata.next_sequence_number()
    return {_LAST: json.dumps({"number": number, "record": record})}


def entries_of(metadata: TableMetadata, files: Iterable[DataFile]) -> Iterator[Entry]:
    """Yields files in the form that a table has."""
    schema = metadata.schema()
    ids = parquet_path_to_id_mapping(schema)

    def statistics(file: DataFile, properties: Mapping[str, str]) -> dict[str, Any]:
        plan = compute_statistics_plan(schema, dict(properties))
        found = data_file_statistics_from_parquet_metadata(file.metadata, plan, ids)
        return found.to_serialized_dict()

    def statistics_of(file: DataFile) -> dict[str, Any]:
        try:
            return statistics(file, metadata.properties)
        except UnicodeEncodeError:
            # pyiceberg increments a text that it cuts, which may give no character.
            return statistics(file, {**metadata.properties, _METRICS: "counts"})

    for file in files:
        entry = Entry.from_args(
            content=DataFileContent.DATA,
            file_path=f"{metadata.location.rstrip('/')}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics_of(file),
        )
        entry.spec_id = metadata.default_spec_id
        yield entry


def _new_location(storage: Storage, name: str) -> str:
    """Returns a new folder: another catalog may have a table of this name in the same warehouse."""
    folder = f"{storage.location}/{name.replace('.', '/')}-{uuid.uuid4().hex}"
    # Not Path.as_uri(), because pyiceberg does not decode its escapes.
    return folder if storage.is_url else f"file://{folder}"
