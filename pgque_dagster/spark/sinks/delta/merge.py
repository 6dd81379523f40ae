"""Merges rows into a Delta table by key. Delta's library rewrites files in the driver."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable

from ..files.data_files import DataFile
from ..files.storage import Storage

# Delta's library adds its own columns to those of the rows.
RESERVED = "__delta_rs_"


def merge(
    table: DeltaTable,
    rows: "Rows",
    key: Sequence[str],
    properties: CommitProperties,
    deleted: str | None = None,
) -> int:
    """Replaces the row of each key, or inserts or deletes it, in one commit.

    The rows have one for each key, whose column `deleted` tells whether the row of that key is
    deleted. Returns by how many rows the table grows.
    """
    if not rows.files:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        return 0
    values = {_quoted(field.name): "null" for field in table.schema().fields}
    values |= {_quoted(x): f"source.{_quoted(x)}" for x in rows.schema.names if x != deleted}
    merger = table.merge(
        rows.reader(),
        " and ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in key),
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    )
    stays = None
    if deleted is not None:
        stays = f"not source.{_quoted(deleted)}"
        merger = merger.when_matched_delete(f"source.{_quoted(deleted)}")
    merger = merger.when_matched_update(values, stays).when_not_matched_insert(values, stays)
    found = merger.execute()
    return int(found["num_target_rows_inserted"]) - int(found["num_target_rows_deleted"])


class Rows:
    """The rows of files, which are read one after another."""

    def __init__(self, storage: Storage, files: Sequence[DataFile]) -> None:
        self._storage = storage
        self.files = files

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files, of which there must be at least one."""
        return self.files[0].metadata.schema.to_arrow_schema()

    def reader(self) -> pa.RecordBatchReader:
        """The rows."""
        schema = self.schema
        batches = (
            batch.cast(schema)
            for file in self.files
            for batch in pq.ParquetFile(self._storage.source(file.path)).iter_batches()
        )
        return pa.RecordBatchReader.from_batches(schema, batches)


def _quoted(name: str) -> str:
    return f"`{name}`"
