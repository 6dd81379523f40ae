"""Publishes the files of an attempt in an Iceberg table by one commit, as `publication.py` demands.

A commit demands of the catalog that the branch `main` is still at the snapshot that was read before
the lease was renewed. The retries of pyiceberg, which would repeat it on a newer snapshot, are
switched off. Each snapshot names its batch and attempt in its summary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from ....client import Batch, InvalidArgument, PgqueError
from ..files.data_files import DataFile
from ..files.statistics import check_required
from ..files.storage import Storage, StorageFailed, needing_extra, way_out
from ..modes import BATCH_ID, SchemaEvolution
from ..publication import BatchIdentity, WriteAttempt
from ..tables import (
    INCARNATION,
    check_incarnation_of,
    check_same,
)
from .schema import check_fit

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

_BATCH = "pgque.batch"
_EPOCH = "pgque.epoch"
_ATTEMPT = "pgque.attempt"
_NAMES = "schema.name-mapping.default"
_RETRIES = "commit.retry.num-retries"
# The sequence number of the first commit to a table.
_FIRST = 1
# By how much the clocks of the database and of writers of the table may differ.
_CLOCKS = timedelta(hours=1)
_LIBRARIES = ("pyiceberg", "sqlalchemy", "psycopg", "requests", "pyarrow")


@dataclass(frozen=True)
class IcebergTarget:
    """An Iceberg table and how batches get into it."""

    table: str
    evolution: SchemaEvolution
    storage: Storage

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Iceberg table {self.table}"

    @contextmanager
    def errors(self, batch: BatchIdentity) -> Iterator[None]:
        """Raises `StorageFailed` for an error of the catalog or of files, naming the table."""
        with needing_extra("iceberg"):
            from pyiceberg.exceptions import NoSuchTableError
        try:
            yield
        except PgqueError:
            raise
        except NoSuchTableError:
            raise StorageFailed(
                f"{self.name} was deleted while {batch} was written",
                "Run the batch again: the next attempt creates the table.",
            ) from None
        except Exception as error:
            library = type(error).__module__.partition(".")[0]
            if library not in _LIBRARIES and not isinstance(error, OSError):
                raise
            told = self.storage.without_secrets(error)
            raise StorageFailed(
                f"{self.name} did not take {batch}: {told}", way_out(told)
            ) from None


class IcebergOutput:
    """The files of an attempt, to be published in an Iceberg table.

    Args:
        target: the table.
        catalog: its catalog.
        claim: the claim of the batch.
        batch: its identity.
        attempt: this attempt.
        columns: the columns of the files.
    """

    def __init__(
        self,
        target: IcebergTarget,
        catalog: "Catalog",
        claim: Batch,
        batch: BatchIdentity,
        attempt: WriteAttempt,
        columns: pa.Schema,
    ) -> None:
        self.attempt = attempt
        self.files: list[DataFile] = []
        self.version = -1
        self._table_id: object = None
        self._target = target
        self._catalog = catalog
        self._claim = claim
        self._batch = batch
        self._columns = columns
        self._name = f"{batch.incarnation}/{batch.queue}/{batch.consumer}/{batch.batch_id}"

    def read(self) -> "Table":
        """Loads the newest state of the table."""
        with self._target.errors(self._batch):
            table = self._catalog.load_table(self._target.table)
        # A commit demands this id as well, so the table cannot be replaced before it unnoticed.
        check_same(self._target.name, self._batch, self._table_id, table.metadata.table_uuid)
        return table

    def published(self, state: "Table") -> WriteAttempt | None:
        """Returns the attempt at this batch whose snapshot is the newest one of the batch."""
        for snapshot in _history(state):
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.get(_BATCH) == self._name:
                self.version = snapshot.snapshot_id
                return WriteAttempt(int(summary[_EPOCH]), summary[_ATTEMPT])
        return None

    def replace(self, state: "Table") -> bool:
        """Commits the rows in place of those that the table has of the batch."""
        from pyiceberg.exceptions import CommitFailedException

        with self._target.errors(self._batch):
            try:
                self._commit(state)
            except CommitFailedException:
                if self.read().current_snapshot() == state.current_snapshot():
                    raise
                return False
        return True

    def begin(self, table: "Table") -> None:
        """Checks before anything is written that the table fits; it must not be replaced later.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        self._table_id = table.metadata.table_uuid
        self.check(table)

    def check(self, table: "Table") -> bool:
        """Says whether the table lacks columns.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        name, incarnation = self._target.name, self._batch.incarnation
        check_incarnation_of(
            name,
            table.properties.get(INCARNATION),
            self._claim,
            incarnation,
            f"with table.transaction() as change: change.set_properties({{'{INCARNATION}': "
            f"'{incarnation}'}}).",
        )
        if table.spec().fields:
            columns = ", ".join(field.name for field in table.spec().fields)
            raise InvalidArgument(
                f"{name} is partitioned by {columns}, and this sink does not partition",
                "Store into a table without partitions: readers skip files by their statistics. To "
                "fill this one, copy the rows into it by an engine that writes partitions.",
            )
        required = [field.name for field in table.schema().fields if field.required]
        check_required(name, required, self.files)
        stored = table.schema().as_arrow()
        return check_fit(name, stored, required, self._columns, self._target.evolution)

    def _commit(self, table: "Table") -> None:
        # Of this object only: the table's own property stays what it is.
        properties = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        lacks_columns = self.check(table)
        change = table.transaction()
        if lacks_columns:
            with change.update_schema() as update:
                update.union_by_name(self._columns)
        if change.table_metadata.name_mapping() is None:
            # Files have no ids of columns, so readers find columns by this.
            names = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties({_NAMES: names})
        record = {
            _BATCH: self._name,
            _EPOCH: str(self.attempt.epoch),
            _ATTEMPT: self.attempt.id,
        }
        if self._may_have_rows(table):
            # Files that have other rows as well, because somebody compacted them, are rewritten.
            change.delete(f"{BATCH_ID} = {self._batch.batch_id}", snapshot_properties=record)
        with change.update_snapshot(snapshot_properties=record).merge_append() as append:
            for file in self.files:
                append.append_data_file(self._entry(change, table.location(), file))
        committed = change.commit_transaction()
        snapshot = committed.current_snapshot()
        assert snapshot is not None
        self.version = snapshot.snapshot_id

    def _may_have_rows(self, table: "Table") -> bool:
        """Says whether an attempt at this batch was published, or its snapshot may have expired."""
        if self.published(table) is not None:
            return True
        kept = list(_history(table))
        if not kept or kept[-1].sequence_number == _FIRST:
            return False
        oldest = datetime.fromtimestamp(kept[-1].timestamp_ms / 1000, UTC)
        return oldest > self._claim.info().end - _CLOCKS

    @staticmethod
    def _entry(change: "Transaction", location: str, file: DataFile) -> "Entry":
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile as Entry
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema = change.table_metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata,
            compute_statistics_plan(schema, change.table_metadata.properties),
            parquet_path_to_id_mapping(schema),
        )
        return Entry.from_args(
            content=DataFileContent.DATA,
            file_path=f"{location.rstrip('/')}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=change.table_metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _history(table: "Table") -> Iterator["Snapshot"]:
    """Yields the snapshots of the branch `main` that the table still has, the newest first."""
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = known.get(parent) if parent is not None else None
