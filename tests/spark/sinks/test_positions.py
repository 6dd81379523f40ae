"""Tasks find the rows that have the keys of changes, whatever their type and their statistics."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from pgque_dagster.spark.sinks.files.file_reader import live_rows
from pgque_dagster.spark.sinks.files.positions import (
    SearchedFile,
    find_positions,
    rows_with_keys,
    write_changes,
)
from pgque_dagster.spark.sinks.files.storage import Storage

LAST = chr(0x10FFFF)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.int16(), [-(2**15), 0, 2**15 - 1]),
    (pa.string(), ["", "a" * 5000, "b" * 100, "b" * 100 + "c", LAST, LAST * 9]),
    (pa.binary(), [b"", b"\x00", b"\x7f", b"\xff", b"\xff" * 100]),
    (pa.decimal128(38, 18), [Decimal("-1E-18"), Decimal("12345678901234567890.1"), Decimal(0)]),
    (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01"), Decimal("999.99")]),
    (pa.date32(), [date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)]),
    (pa.timestamp("us"), [datetime(1, 1, 1), datetime(1883, 11, 18, 12, 3, 58, 1)]),
    (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]),
    (pa.float64(), [-0.0, 1.5, float("inf"), float("nan"), float("-inf")]),
    (pa.bool_(), [True, False]),
]


class Deleted:
    def __init__(self, *positions: int) -> None:
        self._positions = positions

    def positions(self, _: Storage) -> BitMap64:
        return BitMap64(self._positions)


def write(folder: Path, name: str, rows: pa.Table, **options: Any) -> SearchedFile:
    pq.write_table(rows, folder / name, **options)
    return SearchedFile(name, (folder / name).stat().st_size)


def changes(spark: SparkSession, folder: Path, rows: pa.Table, *key: str) -> Any:
    frame = spark.createDataFrame(rows.append_column("gone", pa.repeat(False, len(rows))))
    return write_changes(frame.coalesce(1), Storage.of(folder), "new", key, "gone")


def test_values_of_each_type_are_found(spark: SparkSession, tmp_path: Path) -> None:
    storage = Storage.of(tmp_path)
    for number, (kind, values) in enumerate(VALUES):
        table = pa.table({"k": pa.array([None, *values, *values], kind)})
        # Statistics of groups with one value and with several.
        files = [
            write(tmp_path, f"{number}-{size}.parquet", table, row_group_size=size)
            for size in (1, 3, 100)
        ]
        keys = [0.0 if x == 0 and pa.types.is_floating(kind) else x for x in values]
        for first in (0, 1):
            some = pa.table({"k": pa.array(keys[first::2], kind)})
            changed = write(tmp_path, f"k{number}-{first}.parquet", some)
            found = find_positions(spark, storage, files, [changed])  # type: ignore[list-item]
            places = range(1 + first, len(values) + 1, 2)
            wanted = BitMap64([*places, *(place + len(values) for place in places)])
            assert found == {file.path: wanted for file in files}, (kind, first)


def test_keys_of_several_columns_are_found_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    storage = Storage.of(tmp_path)
    rows = pa.table({"a": [1, 1, 2, 2, 3], "b": ["x", "y", "x", "y", "x"], "v": range(5)})
    file = write(tmp_path, "rows.parquet", rows.select(["v", "b", "a"]))
    _, keys = changes(spark, tmp_path, rows.take([1, 2]), "a", "b")
    assert find_positions(spark, storage, [file], keys) == {file.path: BitMap64([1, 2])}
    assert sum(each.rows for each in keys) == 2

    columns = StructType().add("a", LongType()).add("v", LongType()).add("new", StringType())
    found = rows_with_keys(spark, storage, [file], keys, columns)
    assert sorted(found.collect()) == [(1, 1, None), (2, 2, None)]


def test_deleted_rows_are_not_found(spark: SparkSession, tmp_path: Path) -> None:
    storage = Storage.of(tmp_path)
    rows = pa.table({"k": [1, 2, 3, 3]})
    listed = write(tmp_path, "rows.parquet", rows, row_group_size=2)
    _, keys = changes(spark, tmp_path, pa.table({"k": [1, 3]}), "k")
    for bounds in ({}, {"k": (None, None)}, {"k": (0, 9)}, {"k": (None, 3)}):
        file = SearchedFile(listed.path, listed.size, Deleted(0, 2), bounds)
        assert find_positions(spark, storage, [file], keys) == {file.path: BitMap64([3])}


def test_files_that_statistics_exclude_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    _, keys = changes(spark, tmp_path, pa.table({"k": [1, 3], "t": ["a", "c"]}), "k", "t")
    gone = [
        SearchedFile("gone.parquet", 1, None, bounds)
        for bounds in ({"k": (4, 9)}, {"k": (None, 0)}, {"t": ("d", None)}, {"k": (2, 2)})
    ]
    assert find_positions(spark, Storage.of(tmp_path), gone, keys) == {}


def test_rows_that_stay_are_written_apart_from_all_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = Storage.of(tmp_path)
    frame = spark.createDataFrame(
        [(1, "a", False), (2, "b", True)], "k int, v string, gone boolean"
    )
    rows, keys = write_changes(frame.coalesce(1), storage, "new", ["k"], "gone")
    (stays,) = rows
    assert pq.read_table(tmp_path / stays.path).to_pylist() == [{"k": 1, "v": "a"}]
    assert [pq.read_table(tmp_path / x.path)["k"].to_pylist() for x in keys] == [[1, 2]]
    rows, keys = write_changes(frame.where("gone").coalesce(1), storage, "new", ["k"], "gone")
    assert not rows
    assert sum(file.rows for file in keys) == 1


def test_files_with_views_of_texts_are_read(spark: SparkSession, tmp_path: Path) -> None:
    texts = pa.array(["a", "b" * 100, None], pa.string_view())
    file = write(tmp_path, "views.parquet", pa.table({"k": [1, 2, 3], "t": texts}))
    storage, columns = Storage.of(tmp_path), StructType().add("t", StringType())
    for name, value in (("k", 2), ("t", "b" * 100)):
        _, keys = changes(spark, tmp_path, pa.table({name: [value]}), name)
        assert find_positions(spark, storage, [file], keys) == {file.path: BitMap64([1])}
        assert rows_with_keys(spark, storage, [file], keys, columns).collect() == [("b" * 100,)]
    deleted = SearchedFile(file.path, file.size, Deleted(1))
    live = [row for rows in live_rows(storage, deleted) for row in rows["t"].to_pylist()]
    assert live == ["a", None]


def test_a_file_is_new_to_its_writer_even_if_the_answer_was_lost(tmp_path: Path) -> None:
    storage = Storage.of(tmp_path)
    assert storage.create_new("log/1.json", b"mine")
    assert storage.create_new("log/1.json", b"mine")
    assert not storage.create_new("log/1.json", b"another's")
