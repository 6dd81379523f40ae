"""A replica of a table as an Iceberg table, in which changed rows are deleted by position.

Spark tasks write the new rows, and find the positions of the rows that have the same keys. One
commit adds the new files and the lists of positions. With `merge_on_read: false`, tasks replace the
files that have such rows, so readers need no delete files. If another commit came in between, such
as a compaction, rows are found again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping, pyarrow_to_schema
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DecimalType
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.replicas.deletes import HARD
from ...client.replicas.source import SourceTable
from ..batch import SparkBatch
from ..reading.in_tasks import as_types
from ..sinks.files.data_files import DataFile, stored_schema, write_files
from ..sinks.files.file_reader import ListedFile, read_table_files
from ..sinks.files.positions import find_positions, rows_with_keys, write_changes
from ..sinks.files.storage import StorageFailed
from ..sinks.iceberg.commit import (
    RECORD,
    IcebergOutput,
    entries_of,
    for_one_commit,
    history,
    last_change,
    properties_with,
    summary_of,
)
from ..sinks.iceberg.deletes import unneeded, without
from ..sinks.iceberg.sink import IcebergSink
from ..sinks.iceberg.snapshot import check_version, commit_snapshot
from ..sinks.iceberg.table_files import (
    files_since,
    iceberg_columns,
    is_set_back,
    planned,
    root_of,
    searched,
    storage_of,
    why_unreadable,
)
from ..sinks.iceberg.table_files import spark_columns as stored_columns
from .altering import NewColumns
from .commit import Change, ReplicaOutput
from .lake import LakeReplica
from .location import IcebergReplicas
from .source import DELETED
from .stored import kinds


class IcebergReplica(LakeReplica[Table]):
    """The Iceberg table that is the replica of a table.

    Args:
        url: the database of the tables, which also has the catalog.

    Attributes:
        merge_on_read: whether changed rows are deleted by position.

    Raises:
        InvalidArgument: if the URL cannot be opened.
    """

    sink: IcebergSink

    def __init__(self, target: IcebergReplicas, source: SourceTable, owner: str, url: str) -> None:
        self.location = ".".join(source.path)
        self.merge_on_read = target.merge_on_read
        self._url = url
        sink = IcebergSink(
            self.location,
            warehouse=target.warehouse,
            catalog=target.catalog,
            catalog_schema=target.catalog_schema,
            storage_options=target.storage_options,
        )
        super().__init__(source, sink, owner, target.deletes)

    def newest(self) -> tuple[int | None, int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and what `last_change` returns for it."""
        with self.sink.open(self._url) as catalog:
            try:
                table = catalog.load_table(self.sink.table)
            except NoSuchTableError:
                return None
        self.check(table.properties)
        fits = self.fits(stored_columns(table)) and not is_set_back(table)
        newest = table.metadata.current_snapshot_id
        return newest if fits else None, *self.last_change(table)

    def last_change(self, table: Table) -> tuple[int | None, dict[str, Any] | None]:
        """Returns the snapshot of the last commit that changed rows, and its record."""
        return last_change(table)

    def columns(self, stored: Iterable[t.StructField] = ()) -> t.StructType:
        """Returns the replica's columns for Iceberg, which has no smallint."""
        return t.StructType(
            [
                t.StructField(x.name, t.IntegerType(), metadata=x.metadata)
                if isinstance(x.dataType, t.ShortType)
                else x
                for x in super().columns(stored)
            ]
        )

    @contextmanager
    def attempt(self, batch: SparkBatch, copied: str, columns: t.StructType) -> Iterator["_Output"]:
        """Begins an attempt to publish something in the replica."""
        with self.sink.catalog_for(batch) as catalog:
            output = _Output(self.sink, self.sink.table, catalog, batch.claim, columns, batch.spark)
            output.replicate(self, batch, copied)
            yield output

    def read(self, spark: SparkSession, version: int | None) -> DataFrame:
        """Returns the rows of a version."""
        return self.sink.read(spark, self._url, version)


class _Output(ReplicaOutput[Table], IcebergOutput):
    """The files of an attempt, to be published in a replica."""

    _replica: IcebergReplica

    def touched(self, changes: DataFrame) -> DataFrame | None:
        """Returns the rows that have a key of the changes."""
        batch, state = self._spark_batch, self.load()
        # Columns that only the replica has have ids, too.
        self.arrow = stored_schema(state.schema().as_arrow())
        with self.in_tasks(batch):
            key = t.StructType([self._schema[name] for name in self._replica.source.key])
            self.keys = write_files(as_types(changes, key), self.storage, self.folder)
            listed, columns = searched(state, planned(state)), stored_columns(state)
            return rows_with_keys(batch.spark, self.storage, listed, self.keys, columns)

    @contextmanager
    def staged(self, changes: DataFrame) -> Iterator[int]:
        """Makes tasks write the new rows and the keys. Yields the number of changes."""
        columns = t.StructType([*self._schema, t.StructField(DELETED, t.BooleanType())])
        changes = as_types(changes, columns)
        old_keys, self.keys = self.keys or (), []
        if not self._row_key:
            self.write(self._spark_batch, changes.drop(DELETED))
            yield self.rows
            return
        with self.in_tasks(self._spark_batch):
            self.files, self.keys = write_changes(
                changes, self.storage, self.folder, self._row_key, DELETED, self.arrow
            )
        try:
            yield sum(file.rows for file in self.keys)
        finally:
            with suppress(StorageFailed):
                self.storage.remove(file.path for file in (*old_keys, *self.keys))

    @property
    def file_columns(self) -> str:
        """The columns of files, with their ids."""
        assert self.arrow is not None
        ids = parquet_path_to_id_mapping(pyarrow_to_schema(self.arrow))
        return f"{super().file_columns} {ids}"

    def change_to(self, state: Table, columns: NewColumns) -> Change | None:
        """Returns how a state gets other columns; None if its files cannot be read by name."""
        tasks, self.storage = planned(state), storage_of(state, self._sink.storage)
        if why_unreadable(state, tasks):
            return None
        for_one_commit(state)
        change, names = state.transaction(), {x.lower() for x in columns.added.names}
        ever = {x.name.lower() for each in state.schemas().values() for x in each.fields}
        is_again = names & ever
        with change.update_schema(allow_incompatible_changes=True) as update:
            for name in columns.dropped:
                update.delete_column(name)
        with change.update_schema() as update:
            for name in columns.retyped:
                kind = columns.schema[name].dataType
                assert isinstance(kind, t.DecimalType)
                update.update_column(columns.names[name], DecimalType(kind.precision, kind.scale))
            for column in self._replica.columns():
                was, comment = columns.names.get(column.name), column.metadata.get("comment") or ""
                if was and comment != (state.schema().find_field(was).doc or ""):
                    update.update_column(was, doc=comment)
            for name, was in columns.renamed.items():
                update.rename_column(was, name)
        if columns.added:
            with change.update_schema() as update:
                update.union_by_name(iceberg_columns(self._spark_batch.spark, columns.added))
        # Files are read by the names of columns.
        if not (columns.values or columns.renamed or columns.retyped or is_again):
            tasks = []
        arrow = stored_schema(change.table_metadata.schema().as_arrow())
        return Change(searched(state, tasks), arrow, (change, tasks))

    def commit_change(
        self, state: Table, change: Change, copies: Sequence[DataFile], record: dict[str, Any]
    ) -> None:
        """Commits other columns, with copies in place of files."""
        transaction, tasks = change.prepared
        since = files_since(state, transaction.table_metadata) if tasks else {}
        transaction.set_properties({**properties_with(record, state.metadata), **since})
        wanted, gone = transaction.table_metadata, {task.file.file_path for task in tasks}
        same = {} if tasks else {"operation": Operation.REPLACE.value}
        commit_snapshot(
            state,
            wanted,
            added=list(entries_of(wanted, copies)),
            gone=gone | unneeded(tasks, gone),
            summary={**same, RECORD: json.dumps(record)},
        )

    def records(self, state: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""
        for snapshot in history(state):
            if record := summary_of(snapshot).get(RECORD):
                yield snapshot.snapshot_id, json.loads(record)

    def last_batch(self, state: Table) -> int | None:
        """Returns the last batch of this consumer in a state."""
        mine = (x["batch_id"] for _, x in self.records(state) if x["app_id"] == self._app_id)
        return next(mine, None)

    def check(self, table: Table) -> list[str]:
        """Refuses a table that is not this replica, or has rules that it does not follow."""
        super().check(table)
        check_version(table)
        self.check_rules(table)
        return []

    def commit(self, state: Table) -> bool:
        """Commits the files, if `state` is still the newest version."""
        for_one_commit(state)
        self.check(state)
        tasks, change = planned(state), state.transaction()
        if self.keys is None or self.adopted is not None:
            self.fit_columns(change, state)
            gone = {task.file.file_path for task in tasks}
            files, more = self._adopted(state, change)
        else:
            files, more, gone = self._replace(state, tasks, self.keys)
        self.check_ids(change)
        change.set_properties(properties_with(self.record, state.metadata))
        wanted = change.table_metadata
        self.version = commit_snapshot(
            state,
            wanted,
            added=[*entries_of(wanted, files), *more],
            gone=gone | unneeded(tasks, gone),
            summary={RECORD: json.dumps(self.record)},
        )
        return True

    def _adopted(self, state: Table, change: Transaction) -> tuple[list[DataFile], list[Entry]]:
        """Returns the files of a copy, and the entries of adopted files and of their deletes."""
        if self.adopted is None:
            return self.files, []
        entries = entries_of(change.table_metadata, self.adopted)
        tasks = [FileScanTask(entry) for entry in entries]
        files, deletes, gone = self._delete(state, tasks, self.gone, self._schema, self.arrow)
        kept = (task.file for task in tasks if task.file.file_path not in gone)
        return files, [*kept, *deletes]

    def _replace(
        self, state: Table, tasks: list[FileScanTask], keys: Sequence[DataFile]
    ) -> tuple[list[DataFile], list[Entry], set[str]]:
        """Deletes the rows with the keys. Returns the result of `_delete`."""
        batch = self._spark_batch
        with self.in_tasks(batch):
            found = find_positions(batch.spark, self.storage, searched(state, tasks), keys)
        if self._replica.deletes == HARD:
            self.grew_by = self.rows - sum(map(len, found.values()))
        # Kept columns have ids, too.
        arrow = stored_schema(state.schema().as_arrow())
        return self._delete(state, tasks, found, stored_columns(state), arrow)

    def _delete(
        self,
        state: Table,
        tasks: list[FileScanTask],
        found: Mapping[str, BitMap64],
        columns: t.StructType,
        arrow: pa.Schema | None,
    ) -> tuple[list[DataFile], list[Entry], set[str]]:
        """Deletes rows of files. Returns new files, new deletes, and files to remove."""
        if self._replica.merge_on_read or not found:
            return self.files, *self.delete_positions(state, tasks, found)
        self.remove_for_state()
        batch, listed, root = self._spark_batch, searched(state, tasks), root_of(state)
        touched = [without(x, root, found[x.path]) for x in listed if x.path in found]
        new = [ListedFile(file.path, file.size) for file in self.files]
        rows = read_table_files(batch.spark, self.storage, [*touched, *new], columns)
        with self.in_tasks(batch):
            files = write_files(rows, self.storage, self.folder, arrow=arrow)
        self.for_state = [file.path for file in files]
        return files, [], {root + path for path in found}

    def fit_columns(self, change: Transaction, state: Table) -> None:
        """Gives the table the columns of the source, because all of its files are replaced."""
        wanted, found = kinds(self._schema), kinds(stored_columns(state))
        odd = [name for name, kind in found.items() if wanted.get(name) != kind]
        with change.update_schema(allow_incompatible_changes=True) as update:
            for name in odd:
                update.delete_column(name)
        with change.update_schema() as update:
            update.union_by_name(self._columns)
        if wanted != found or is_set_back(state):
            change.set_properties(files_since(state, change.table_metadata))
