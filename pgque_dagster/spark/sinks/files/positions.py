"""Finds the rows of a table that have certain keys, and writes changes: what formats share.

A batch changes a table by three steps: tasks write the new rows and, apart from them, the keys of
all changes (`write_changes`). Tasks find the positions of the rows that have these keys
(`find_positions`). Then the format publishes positions and new rows in one commit. No row of the
table leaves a task, so the driver holds only positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from ....client.errors import InvalidArgument
from ...cluster.executor_errors import clear_executor_errors
from ...reading.arrow import nullable
from ...reading.in_tasks import map_in_tasks, read_in_tasks
from .data_files import WRITTEN_FILE, DataFile, write_rows
from .file_reader import ListedFile, deleted_positions, fitted, opened, packed, plain
from .storage import Storage

_FOUND = StructType([StructField("path", StringType()), StructField("positions", BinaryType())])
_PLACE = "__pgque_place"
# The maximum number of characters of a key in a message.
_SHOWN = 100
# How other writers store what the keys have as text and binary.
_PLAIN = {
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
}


@dataclass(frozen=True)
class SearchedFile(ListedFile):
    """A data file to search for rows.

    Attributes:
        bounds: for columns of integers and texts, a lower and an upper bound of the values in the
            file. A column may be absent.
    """

    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def write_changes(
    changes: DataFrame,
    storage: Storage,
    folder: str,
    key: Sequence[str],
    deleted: str,
    arrow: pa.Schema | None = None,
) -> tuple[list[DataFile], list[DataFile]]:
    """Writes the rows that are not deleted and, into other files, the keys of all changes.

    Args:
        changes: the changes.
        storage: the location, which executors access as the driver does.
        folder: a folder in it that no other attempt uses.
        key: the columns of the key.
        deleted: the column that tells whether a row is deleted; it is not written.
        arrow: as for `write_files`.

    Returns:
        The files of rows, and those of keys.

    Raises:
        StorageFailed: if a file cannot be written.
    """
    schema = StructType([x for x in changes.schema if x.name != deleted])
    of_keys = StructType([schema[name] for name in key])

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys: list[pa.RecordBatch] = []

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                # Copied, because a column keeps the memory of its whole batch.
                keys.append(batch.select(key).take(pa.array(range(batch.num_rows))))
                yield batch.filter(pc.invert(batch[deleted])).drop_columns([deleted])

        for are_keys, content, columns in ((False, kept(), schema), (True, iter(keys), of_keys)):
            for file in write_rows(content, storage, folder, columns, arrow=arrow):
                yield pa.RecordBatch.from_pylist([{**asdict(file), "are_keys": are_keys}])

    with clear_executor_errors():
        written = map_in_tasks(changes, write, f"{WRITTEN_FILE}, are_keys boolean").collect()
    rows, keys = (
        [DataFile.of(row) for row in written if row.are_keys == are_keys]
        for are_keys in (False, True)
    )
    return rows, keys


def check_keys(table: str, storage: Storage, files: Sequence[DataFile], key: Sequence[str]) -> None:
    """Raises an `InvalidArgument` with the key if rows lack a key or two rows have the same key."""
    if not files:
        return
    keys = _read_keys(storage, files, list(key))
    for name in key:
        if keys[name].null_count:
            raise InvalidArgument(
                f"column {name} is part of the key of {table}, and has a null",
                "Filter such rows out: nothing is equal to null.",
            )
    counts = keys.group_by(list(key)).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()
    if repeated:
        shown = ", ".join(f"{name} {str(repeated[0][name])[:_SHOWN]}" for name in key)
        raise InvalidArgument(
            f"{repeated[0]['count_all']} rows for {table} have the key {shown}",
            "Aggregate them to one row.",
        )


def find_positions(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[SearchedFile],
    keys: Sequence[DataFile],
    key: Sequence[str] | None = None,
) -> dict[str, BitMap64]:
    """Returns, by the paths of files, the positions of the rows that have one of the keys.

    Tasks read only key columns, only of files and row groups whose statistics allow a key. Rows
    that are deleted already are not found. Without `key`, the files of keys have no other columns.
    """
    columns = None if key is None else list(key)

    def search(part: list[SearchedFile]) -> Iterator[pa.RecordBatch]:
        with storage.errors("cannot be read"):
            wanted = _read_keys(storage, keys, columns)
            for file in part:
                found = BitMap64()
                for _, _, positions in _matches(storage, file, wanted):
                    found |= BitMap64(positions)
                if found:
                    row = {"path": file.path, "positions": found.serialize()}
                    yield pa.RecordBatch.from_pylist([row])

    if not files or not keys:
        return {}
    with clear_executor_errors():
        rows = read_in_tasks(spark, packed(files), search, _FOUND).collect()
    return {row.path: BitMap64.deserialize(bytes(row.positions)) for row in rows}


def rows_with_keys(
    spark: SparkSession,
    storage: Storage,
    files: Sequence[SearchedFile],
    keys: Sequence[DataFile],
    schema: StructType,
) -> DataFrame:
    """Returns the rows that have one of the keys; arguments are as for `find_positions`.

    Tasks read other columns only in row groups that have such a row.
    """
    schema = nullable(schema)
    nothing = spark.createDataFrame([], schema)
    if not files or not keys:
        return nothing
    target: pa.Schema = nothing.limit(0).toArrow().schema

    def read(part: list[SearchedFile]) -> Iterator[pa.RecordBatch]:
        with storage.errors("cannot be read"):
            wanted = _read_keys(storage, keys)
            for file in part:
                source = opened(storage, file)
                for group, first, positions in _matches(storage, file, wanted):
                    names = [name for name in schema.names if name in source.schema_arrow.names]
                    rows = plain(source.read_row_group(group, columns=names))
                    rows = rows.take(positions - first)
                    for batch in rows.to_batches():
                        yield from fitted(batch, target)

    return read_in_tasks(spark, packed(files), read, schema)


def _read_keys(
    storage: Storage, keys: Sequence[DataFile], columns: list[str] | None = None
) -> pa.Table:
    return pa.concat_tables(
        comparable(pq.ParquetFile(storage.source(file.path)).read(columns)) for file in keys
    )


def comparable(keys: pa.Table) -> pa.Table:
    """Returns keys in a form in which equal keys, such as -0.0 and 0, are identical."""
    for place, column in enumerate(keys.schema):
        if pa.types.is_floating(column.type):
            zero = pa.scalar(0, column.type)
            keys = keys.set_column(place, column, pc.add(keys[column.name], zero))
    return keys


def _matches(
    storage: Storage, file: SearchedFile, wanted: pa.Table
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields row groups with keys: the group, its first position, and the positions of its rows."""
    names = wanted.schema.names
    wanted = _within(wanted, file.bounds)
    if not wanted.num_rows:
        return
    source = opened(storage, file)
    if not set(names) <= set(source.schema_arrow.names):
        return  # Its rows have null in this column.
    deleted, first = deleted_positions(storage, file), 0
    for group in range(source.num_row_groups):
        facts = source.metadata.row_group(group)
        some = _within(wanted, _bounds(facts, source.schema_arrow, wanted.schema))
        if some.num_rows:
            rows = plain(source.read_row_group(group, columns=names)).select(names)
            rows = rows.cast(some.schema)
            positions = first + _places(comparable(rows), some)
            positions = positions[np.isin(positions, deleted, assume_unique=True, invert=True)]
            if positions.size:
                yield group, first, positions
        first += facts.num_rows


def _places(rows: pa.Table, wanted: pa.Table) -> np.ndarray:
    """Returns the sorted places of the rows that have one of the keys."""
    names = wanted.schema.names
    found = [pc.is_in(rows[name], value_set=wanted[name]).to_numpy() for name in names]
    places = np.flatnonzero(np.logical_and.reduce(found))
    if len(names) > 1 and places.size:
        # Each value is in some key. This selects rows whose values are in the same key.
        some = rows.take(places).append_column(_PLACE, pa.array(places))
        joined = some.join(wanted, names, join_type="left semi", use_threads=False)
        places = np.sort(joined[_PLACE].to_numpy())
    return places


def _within(keys: pa.Table, bounds: Mapping[str, tuple[Any, Any]]) -> pa.Table:
    """Returns the keys that are within all bounds."""
    mask = None
    for name in keys.schema.names:
        for compare, bound in zip(
            (pc.greater_equal, pc.less_equal), bounds.get(name, (None, None)), strict=True
        ):
            if bound is not None:
                found = compare(keys[name], pa.scalar(bound, keys.schema.field(name).type))
                mask = found if mask is None else pc.and_(mask, found)
    return keys if mask is None else keys.filter(mask)


def _bounds(
    group: pq.RowGroupMetaData, stored: pa.Schema, wanted: pa.Schema
) -> dict[str, tuple[Any, Any]]:
    """Returns the minimum and the maximum of each key column in a row group, if known."""
    columns = (group.column(place) for place in range(group.num_columns))
    by_name = {column.path_in_schema: column for column in columns}
    found: dict[str, tuple[Any, Any]] = {}
    for field_ in wanted:
        kind = field_.type
        # NaN is in no statistics. Values of another type may be compared in another way.
        written = stored.field(field_.name).type
        if pa.types.is_floating(kind) or _PLAIN.get(written, written) != kind:
            continue
        statistics = by_name[field_.name].statistics
        if statistics is not None and statistics.has_min_max:
            try:
                bounds = pa.scalar(statistics.min, kind), pa.scalar(statistics.max, kind)
            except (ValueError, OverflowError, TypeError):  # for example, a date that Python lacks
                continue
            found[field_.name] = bounds
    return found
