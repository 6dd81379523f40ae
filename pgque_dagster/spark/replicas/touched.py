"""Which files of an Iceberg table hold keys of changes: found by statistics, then by their keys."""

from collections.abc import Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, PrimitiveType, StringType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..sinks.files.file_reader import read_table_files
from ..sinks.files.storage import Storage
from ..sinks.iceberg.output import listed, spark_columns

_FILE = "__pgque_file"
_LOW, _HIGH = "__pgque_low", "__pgque_high"
# Spark compares the values of these as Iceberg's statistics do.
_BOUNDED: dict[type, str] = {IntegerType: "int", LongType: "bigint", StringType: "string"}


def files_with_keys(
    spark: SparkSession,
    table: Table,
    storage: Storage,
    files: Sequence[Entry],
    changes: DataFrame,
    key: Sequence[str],
) -> list[Entry]:
    """Returns the files that hold a key of the changes.

    Tasks read only keys, and only those of files whose statistics allow one.

    Args:
        spark: the session.
        table: the table.
        storage: where its files are.
        files: its files.
        changes: the changes.
        key: the columns of the key.
    """
    candidates = _by_statistics(spark, table, files, changes, key)
    if not candidates:
        return []
    rows = rows_of(spark, table, storage, candidates, _FILE)
    keys = list(key)
    found = rows.join(changes.select(keys), keys, "left_semi").select(_FILE).distinct().collect()
    names = {row[_FILE] for row in found}
    return [file for file in candidates if file.file_path.rpartition("/")[2] in names]


def rows_of(
    spark: SparkSession,
    table: Table,
    storage: Storage,
    files: Sequence[Entry],
    file_column: str | None = None,
) -> DataFrame:
    """Returns the rows of files of a table, with the names of their files if a column is named."""
    columns = spark_columns(table)
    return read_table_files(spark, storage, listed(table, files), columns, file_column)


def _by_statistics(
    spark: SparkSession,
    table: Table,
    files: Sequence[Entry],
    changes: DataFrame,
    key: Sequence[str],
) -> list[Entry]:
    fields = [table.schema().find_field(name) for name in key]
    kinds = [(x.name, x.field_id, x.field_type) for x in fields if type(x.field_type) in _BOUNDED]
    if not kinds or not files:
        return list(files)
    bounds = [
        (
            place,
            *(_bound(file.lower_bounds, number, kind) for _, number, kind in kinds),
            *(_bound(file.upper_bounds, number, kind) for _, number, kind in kinds),
        )
        for place, file in enumerate(files)
    ]
    columns = [
        f"{prefix}{place} {_BOUNDED[type(kind)]}"
        for prefix in (_LOW, _HIGH)
        for place, (_, _, kind) in enumerate(kinds)
    ]
    there = spark.createDataFrame(bounds, f"{_FILE} int, {', '.join(columns)}")
    may_hold = f.lit(True)
    for place, (name, _, _) in enumerate(kinds):
        may_hold = may_hold & _within(f.col(f"`{name}`"), f"{_LOW}{place}", f"{_HIGH}{place}")
    found = changes.join(f.broadcast(there), may_hold).select(_FILE).distinct().collect()
    return [files[place] for place in sorted(row[_FILE] for row in found)]


def _within(value: Column, low: str, high: str) -> Column:
    return (f.col(low).isNull() | (value >= f.col(low))) & (
        f.col(high).isNull() | (value <= f.col(high))
    )


def _bound(bounds: dict[int, bytes] | None, number: int, kind: Any) -> Any:
    """Returns a bound of a column, or None if the file has none for it."""
    stored = (bounds or {}).get(number)
    assert isinstance(kind, PrimitiveType)
    return None if stored is None else from_bytes(kind, stored)
