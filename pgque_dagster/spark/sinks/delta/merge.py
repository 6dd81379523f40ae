"""Merges rows into a Delta table by key. The driver does it: Delta's library reads and rewrites."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ....client import InvalidArgument
from ..files.data_files import DataFile
from ..files.storage import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_KEYS_ONLY = "__pgque_key"
# Names of this module and of Delta's library, which adds columns of its own to those of the rows.
RESERVED = (_KEYS_ONLY, "__delta_rs_")
_SHOWN = 100


def check_keys(
    table: str, storage: Storage, files: Sequence[DataFile], key: Sequence[str], *, unique: bool
) -> None:
    """Refuses rows without a key, and for an upsert two rows with the same one.

    Raises:
        InvalidArgument: naming the key.
    """
    keys = _keys(storage, files, key)
    for name in key:
        if keys is not None and keys[name].null_count:
            raise InvalidArgument(
                f"column {name} is part of the key of {table}, and has a null",
                "Filter such rows out: nothing is equal to null.",
            )
    if keys is None or not unique:
        return
    counts = keys.group_by(list(key)).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()
    if repeated:
        shown = ", ".join(f"{name} {str(repeated[0][name])[:_SHOWN]}" for name in key)
        raise InvalidArgument(
            f"{repeated[0]['count_all']} rows for {table} have the key {shown}",
            "Aggregate them to one row, or use mode='replace', which keeps all rows of a key.",
        )


def merge(
    table: "DeltaTable",
    storage: Storage,
    files: Sequence[DataFile],
    key: Sequence[str],
    *,
    replace: bool,
    properties: Any,
) -> None:
    """Merges the rows of files into the table in one commit.

    Args:
        table: the version of the table to merge into.
        storage: where the files are.
        files: the files.
        key: the columns that identify a row, or with `replace` a group of rows.
        replace: whether the rows replace all rows of their keys; else each replaces one row.
        properties: of the commit.
    """
    match = " and ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in key)
    rows = _Rows(storage, files, key)
    if rows.schema is None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        return
    values = {_quoted(field.name): "null" for field in table.schema().fields}
    values |= {_quoted(name): f"source.{_quoted(name)}" for name in rows.schema.names}
    if not replace:
        table.merge(
            rows.reader(),
            match,
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        ).when_matched_update(values).when_not_matched_insert(values).execute()
        return
    table.merge(
        rows.reader_with_keys(),
        f"source.{_quoted(_KEYS_ONLY)} and {match}",
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    ).when_matched_delete().when_not_matched_insert(
        values, predicate=f"not source.{_quoted(_KEYS_ONLY)}"
    ).execute()


class _Rows:
    """The rows of files, which are read one after another."""

    def __init__(self, storage: Storage, files: Sequence[DataFile], key: Sequence[str]) -> None:
        self._storage = storage
        self._files = files
        self._key = list(key)
        self.schema = files[0].metadata.schema.to_arrow_schema() if files else None

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def reader_with_keys(self) -> pa.RecordBatchReader:
        """The distinct keys, to delete by, and then the rows, to insert."""
        assert self.schema is not None
        marked = self.schema.append(pa.field(_KEYS_ONLY, pa.bool_()))

        def batches() -> Iterator[pa.RecordBatch]:
            keys = _keys(self._storage, self._files, self._key)
            assert keys is not None and self.schema is not None
            distinct = keys.group_by(self._key).aggregate([])
            columns = [
                distinct[field.name].cast(field.type)
                if field.name in self._key
                else pa.nulls(distinct.num_rows, field.type)
                for field in self.schema
            ]
            mark = pa.array([True] * distinct.num_rows)
            yield from pa.table([*columns, mark], schema=marked).to_batches()
            for batch in self._batches():
                mark = pa.array([False] * batch.num_rows)
                yield pa.RecordBatch.from_arrays([*batch.columns, mark], schema=marked)

        return pa.RecordBatchReader.from_batches(marked, batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            for batch in pq.ParquetFile(self._storage.source(file.path)).iter_batches():
                yield batch.cast(self.schema)


def _keys(storage: Storage, files: Sequence[DataFile], key: Sequence[str]) -> pa.Table | None:
    """The keys of all rows, equal where a merge takes them for equal: it does so for -0.0 and 0."""
    parts = [pq.ParquetFile(storage.source(file.path)).read(columns=list(key)) for file in files]
    if not parts:
        return None
    keys = pa.concat_tables(parts)
    for place, field in enumerate(keys.schema):
        if pa.types.is_floating(field.type):
            keys = keys.set_column(place, field, pc.add(keys[field.name], pa.scalar(0, field.type)))
    return keys


def _quoted(name: str) -> str:
    return f"`{name}`"
