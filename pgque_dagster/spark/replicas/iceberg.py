"""A replica of a table as an Iceberg table, whose files are replaced when their rows change.

Tasks of Spark find the files that hold a key of the changes, and write their other rows and the new
rows into new files. One commit removes the old files and adds the new ones, so that readers need no
files of deletes. If somebody else committed meanwhile, such as a compaction, files are found and
written anew.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.replicas.deletes import HARD
from ...client.source_tables import SourceTable
from ..batch import SparkBatch
from ..cluster.executor_errors import clear_executor_errors
from ..cluster.lost_lease import cancelled_without_lease
from ..sinks.iceberg.output import (
    FILES_SINCE,
    RECORD,
    IcebergOutput,
    committed_snapshot,
    entries_of,
    for_one_commit,
    history,
    name_columns,
    summary_of,
)
from ..sinks.iceberg.output import spark_columns as stored_columns
from ..sinks.iceberg.sink import IcebergSink
from ..sinks.modes import TARGET_FILE_BYTES
from .lake import LakeReplica, kinds
from .output import ReplicaOutput
from .source import DELETED
from .target import IcebergReplicas
from .touched import files_with_keys, rows_of

# The property with the record of the last commit, and the sequence number of its snapshot.
_LAST = "pgque.last_commit"
# How many changes one task writes.
_TASK_ROWS = 1_000_000


class IcebergReplica(LakeReplica[Table]):
    """The Iceberg table that is the replica of a table.

    Args:
        target: where replicas are.
        source: the table.
        owner: who replicates it.
        url: the database of the table, which has the catalog.

    Raises:
        InvalidArgument: if nothing can open the URL.
    """

    sink: IcebergSink

    def __init__(self, target: IcebergReplicas, source: SourceTable, owner: str, url: str) -> None:
        self.location = ".".join(source.path)
        self._url = url
        sink = IcebergSink(
            self.location,
            warehouse=target.warehouse,
            catalog=target.catalog,
            catalog_schema=target.catalog_schema,
            storage_options=target.storage_options,
        )
        super().__init__(source, sink, owner, target.deletes)

    def newest(self) -> tuple[int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and the record of the last commit that changed rows."""
        with self.sink.open(self._url) as catalog:
            try:
                table = catalog.load_table(self.sink.table)
            except NoSuchTableError:
                return None
        self.check(table.properties)
        if not self.fits(stored_columns(table)):
            return None, None
        return table.metadata.current_snapshot_id, self.last_record(table)

    def last_record(self, table: Table) -> dict[str, Any] | None:
        """Returns the record of the last commit that changed rows."""
        last = json.loads(table.properties.get(_LAST, '{"number": null}'))
        number, found = last["number"], None
        for snapshot in history(table):
            if record := summary_of(snapshot).get(RECORD):
                return dict(json.loads(record))
            # Another engine's compaction changes no row.
            if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
                return None
            # Ours may have expired since: then this one is the first that came after it.
            is_next = number is not None and snapshot.sequence_number == number + 1
            found = last.get("record") if is_next else None
        return found

    def columns(self, stored: Iterable[t.StructField] = ()) -> t.StructType:
        """Returns the columns of the replica, as Iceberg has them, which knows no smallint."""
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

    _changes: DataFrame | None = None

    def write_copy(self, rows: DataFrame) -> None:
        """Has tasks write the rows that are to be the whole content."""
        self.write(self._spark_batch, rows.select(*self._cast()))

    @contextmanager
    def staged(self, changes: DataFrame) -> Iterator[int]:
        """Keeps changes in executors for the block. Yields how many there are."""
        self._changes = kept = changes.select(*self._cast(), DELETED).cache()
        try:
            with (
                cancelled_without_lease(self._spark_batch.spark, self._claim),
                clear_executor_errors(),
            ):
                count = kept.count()
            yield count
        finally:
            kept.unpersist()

    def records(self, state: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""
        for snapshot in history(state):
            if record := summary_of(snapshot).get(RECORD):
                yield snapshot.snapshot_id, json.loads(record)

    def last_batch(self, state: Table) -> int | None:
        """Returns the last batch of this consumer that a state has."""
        mine = (x["batch_id"] for _, x in self.records(state) if x["app_id"] == self._app_id)
        return next(mine, None)

    def check(self, table: Table) -> list[str]:
        """Refuses a table that is not this replica, or has rules that it does not keep."""
        super().check(table)
        self.check_rules(table)
        return []

    def commit(self, state: Table) -> bool:
        """Commits the files, if `state` is the newest version still."""
        for_one_commit(state)
        self.check(state)
        files = [task.file for task in state.scan().plan_files()]
        if self._changes is not None:
            files = self._write_merged(state, files, self._changes)
        change = state.transaction()
        if self._changes is None:
            self._fit_columns(change, state)
        name_columns(change)
        record = {RECORD: json.dumps(self.record)}
        with change.update_snapshot(snapshot_properties=record).overwrite() as overwrite:
            for old in files:
                overwrite.delete_data_file(old)
            for new in entries_of(change, state.location(), self.files):
                overwrite.append_data_file(new)
        if newest := change.table_metadata.snapshot_by_name("main"):
            last = {"number": newest.sequence_number, "record": self.record}
            change.set_properties({_LAST: json.dumps(last)})
        self.version = committed_snapshot(change)
        if self._replica.deletes == HARD:
            self.grew_by = self.rows - sum(old.record_count for old in files)
        return True

    def _write_merged(self, state: Table, files: list[Entry], changes: DataFrame) -> list[Entry]:
        """Has tasks write what replaces the files that hold a key. Returns these files."""
        # Of an attempt on an older state.
        self.remove_files()
        spark, batch = self._spark_batch.spark, self._spark_batch
        files = files if self._row_key else []
        with cancelled_without_lease(spark, self._claim):
            old = files_with_keys(spark, state, self.storage, files, changes, self._row_key)
        rows = changes.where(f"not `{DELETED}`").drop(DELETED)
        if old:
            kept, key = rows_of(spark, state, self.storage, old), list(self._row_key)
            kept = kept.join(changes.select(key), key, "left_anti")
            # It may have columns that the source has no longer.
            rows = kept.unionByName(rows, allowMissingColumns=True)
        size = sum(file.file_size_in_bytes for file in old)
        tasks = 1 + size // TARGET_FILE_BYTES + (self.changes or 0) // _TASK_ROWS
        self.write(batch, rows.coalesce(tasks))
        return old

    def _fit_columns(self, change: Transaction, state: Table) -> None:
        """Gives the table the columns of the source, as all of its files are replaced."""
        wanted, found = kinds(self._schema), kinds(stored_columns(state))
        odd = [name for name, kind in found.items() if wanted.get(name) != kind]
        with change.update_schema(allow_incompatible_changes=True) as update:
            for name in odd:
                update.delete_column(name)
        with change.update_schema() as update:
            update.union_by_name(self._columns)
        if wanted != found:
            change.set_properties({FILES_SINCE: str(change.table_metadata.current_schema_id)})

    def _cast(self) -> list[Any]:
        return [f.col(f"`{x.name}`").cast(x.dataType).alias(x.name) for x in self._schema]
