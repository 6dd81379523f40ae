"""Publishes the files of an attempt in an Iceberg table by one commit, as `publication.py` demands.

A commit demands of the catalog that the branch `main` is still at the snapshot that was read before
the lease was renewed. The retries of pyiceberg, which would repeat it on a newer snapshot, are
switched off. Each snapshot names its batch and attempt in its summary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from ....client.read_batch import ReadBatch
from ..files.data_files import DataFile
from ..modes import BATCH_ID
from ..publication import BatchIdentity, WriteAttempt
from ..tables import INCARNATION, TableFacts, TableOutput, TableTarget
from .schema import kinds

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


@dataclass(frozen=True)
class IcebergTarget(TableTarget):
    """An Iceberg table and how batches get into it."""

    table: str
    extra = "iceberg"
    libraries = ("pyiceberg", "sqlalchemy", "psycopg", "requests", "pyarrow")

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Iceberg table {self.table}"

    @property
    def not_found(self) -> type[Exception]:
        """The error for a table that is missing."""
        from pyiceberg.exceptions import NoSuchTableError

        return NoSuchTableError


class IcebergOutput(TableOutput["Table"]):
    """The files of an attempt, to be published in an Iceberg table.

    Args:
        target: the table.
        catalog: its catalog.
        claim: the claim of the batch.
        batch: its identity.
        columns: the columns of the files.
    """

    _target: IcebergTarget

    def __init__(
        self,
        target: IcebergTarget,
        catalog: "Catalog",
        claim: ReadBatch,
        batch: BatchIdentity,
        columns: pa.Schema,
    ) -> None:
        super().__init__(target, claim, batch, kinds(columns))
        self._catalog = catalog
        self._schema = columns

    @property
    def conflict(self) -> type[Exception]:
        """The error for a commit on a snapshot that is not the newest."""
        from pyiceberg.exceptions import CommitFailedException

        return CommitFailedException

    def load(self) -> "Table":
        """Loads the newest state of the table."""
        return self._catalog.load_table(self._target.table)

    def identity(self, table: "Table") -> tuple[object, object]:
        """Returns the table's id, which a commit demands as well, and the newest snapshot."""
        return table.metadata.table_uuid, table.current_snapshot()

    def published(self, state: "Table") -> WriteAttempt | None:
        """Returns the attempt at this batch whose snapshot is the newest one of the batch."""
        for snapshot in _history(state):
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.get(_BATCH) == self.batch.record:
                self.version = snapshot.snapshot_id
                return WriteAttempt(int(summary[_EPOCH]), summary[_ATTEMPT])
        return None

    def facts(self, table: "Table") -> TableFacts:
        """Returns what the rows are compared with."""
        return TableFacts(
            incarnation=table.properties.get(INCARNATION),
            adopt=f"with table.transaction() as change: change.set_properties({{'{INCARNATION}': "
            f"'{self.batch.incarnation}'}}).",
            columns=kinds(table.schema().as_arrow()),
            required=[field.name for field in table.schema().fields if field.required],
            rules=[f"partitions by {field.name}" for field in table.spec().fields],
        )

    def commit(self, state: "Table") -> bool:
        """Commits the rows, with the columns that the table lacks."""
        # Of this object only: the table's own property stays what it is.
        properties = {**state.metadata.properties, _RETRIES: "0"}
        state.metadata = state.metadata.model_copy(update={"properties": properties})
        lacks_columns = self.check(state)
        change = state.transaction()
        if lacks_columns:
            with change.update_schema() as update:
                update.union_by_name(self._schema)
        if change.table_metadata.name_mapping() is None:
            # Files have no ids of columns, so readers find columns by this.
            names = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties({_NAMES: names})
        record = {
            _BATCH: self.batch.record,
            _EPOCH: str(self.attempt.epoch),
            _ATTEMPT: self.attempt.id,
        }
        if self._may_have_rows(state):
            # Files that have other rows as well, because somebody compacted them, are rewritten.
            change.delete(f"{BATCH_ID} = {self.batch.batch_id}", snapshot_properties=record)
        with change.update_snapshot(snapshot_properties=record).merge_append() as append:
            for file in self.files:
                append.append_data_file(self._entry(change, state.location(), file))
        committed = change.commit_transaction()
        snapshot = committed.current_snapshot()
        assert snapshot is not None
        self.version = snapshot.snapshot_id
        return True

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
