"""Compares the rows of a table with those of its replica, by the hash of each row."""

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.replicas.source import SourceTable
from ...client.replicas.verify import SHOWN, Difference
from .source import DELETED, as_compared, spark_columns

EXTRA, REPEATED = "extra", "repeated"
# Names that no column of a source uses.
_OURS, _THEIRS, _ROW_HASH = "__pgque_ours", "__pgque_theirs", "__pgque_hash"
_KIND, _ROW = "__pgque_kind", "__pgque_row"
_HASH, _COUNT = "hash", "count"


def compare(
    rows: DataFrame, stored: DataFrame, source: SourceTable
) -> tuple[int, int, tuple[Difference, ...]]:
    """Returns the number of rows, the number of differences and some of them."""
    rows, stored = (_keyed(each, source) for each in (rows, stored))
    marked = mark_differences(rows, stored, source)
    count, differences, _ = count_differences(marked)
    # Reads both again; this is rare, and keeps nothing in memory.
    return count, differences, _examples(marked, rows, stored, source) if differences else ()


def mark_differences(rows: DataFrame, stored: DataFrame, source: SourceTable) -> DataFrame:
    """Returns the keys of both, each with the problem of its row, if there is one."""
    mine, its = _hashed(rows, source, _OURS), _hashed(stored, source, _THEIRS)
    ours, theirs = f.col(_OURS), f.col(_THEIRS)
    kind = (
        f.when(theirs.isNull(), "missing")
        .when(ours.isNull(), EXTRA)
        .when(_is_repeated(ours[_COUNT], theirs[_COUNT], source), REPEATED)
        .when(ours[_HASH] != theirs[_HASH], "different")
    )
    return mine.join(its, _keys(source), "full_outer").withColumn(_KIND, kind)


def _is_repeated(ours: Column, theirs: Column, source: SourceTable) -> Column:
    """Returns whether equal rows occur too often."""
    return f.greatest(ours, theirs) > 1 if source.key else ours != theirs


def _keys(source: SourceTable) -> list[str]:
    """Returns the columns by which rows are compared."""
    return list(source.key) or [_ROW_HASH]


def _keyed(rows: DataFrame, source: SourceTable) -> DataFrame:
    """Returns rows with the columns by which they are compared: without a key, their hash."""
    return rows if source.key else rows.withColumn(_ROW_HASH, _hash(source))


def count_differences(marked: DataFrame) -> tuple[int, int, int]:
    """Returns the number of rows in the table, of differing keys, and of repeated keys."""
    kind = f.col(_KIND)
    (found,) = marked.agg(
        f.coalesce(f.sum(f.col(_OURS)[_COUNT]), f.lit(0)),
        f.count(kind),
        f.count(f.when(kind == REPEATED, 1)),
    ).collect()
    return tuple(found)


def changes_between(
    marked: DataFrame, rows: DataFrame, stored: DataFrame, source: SourceTable
) -> DataFrame:
    """Returns the changes that make a replica equal, in the columns that `net_changes` has.

    `marked` is the result of `mark_differences`, without repeated rows.
    """
    columns = _named(column.name for column in source.columns)

    def of(found: Column, frame: DataFrame) -> DataFrame:
        keys = f.broadcast(marked.where(found).select(*_named(source.key)))
        return frame.join(keys, list(source.key), "left_semi")

    kind = f.col(_KIND)
    there = of(kind != EXTRA, rows).select(*columns, f.lit(False).alias(DELETED))
    gone = of(kind == EXTRA, stored).dropDuplicates(list(source.key))
    return there.unionByName(gone.select(*columns, f.lit(True).alias(DELETED)))


def _examples(
    marked: DataFrame, rows: DataFrame, stored: DataFrame, source: SourceTable
) -> tuple[Difference, ...]:
    keys = _keys(source)
    # Python has no year before 1, and its local times repeat an hour each year.
    shown = [
        (column.cast("string") if isinstance(kind, t.TimestampType) else column).alias(name)
        for name, column in zip(keys, _named(keys), strict=True)
        for kind in [marked.schema[name].dataType]
    ]
    wrong = marked.where(f.col(_KIND).isNotNull()).select(_KIND, *_named(keys)).limit(SHOWN)
    wrong = wrong.localCheckpoint()
    found = wrong.select(_KIND, *shown).collect()
    some = f.broadcast(wrong)
    here, there = (
        [
            (_key(row, keys), row[_ROW])
            for row in frame.join(some, keys, "left_semi")
            .select(*shown, _text(frame, source))
            .collect()
        ]
        for frame in (rows, stored)
    )
    return tuple(
        Difference(
            row[_KIND],
            {key: row[key] for key in keys},
            tuple(text for key, text in here if key == _key(row, keys)),
            tuple(text for key, text in there if key == _key(row, keys)),
        )
        for row in found
    )


def _key(row: Row, keys: Sequence[str]) -> list[Any]:
    return [row[key] for key in keys]


def _text(frame: DataFrame, source: SourceTable) -> Column:
    """Returns a row as JSON, for messages."""
    values = [
        (
            f.hex(column)
            if isinstance(frame.schema[name].dataType, t.BinaryType)
            else column.cast("string")
        ).alias(name)
        for name, column in ((column.name, f.col(f"`{column.name}`")) for column in source.columns)
    ]
    return f.to_json(f.struct(*values), {"ignoreNullFields": "false"}).alias(_ROW)


def _hashed(rows: DataFrame, source: SourceTable, name: str) -> DataFrame:
    """Returns the keys, each with the hash of its row and the number of its rows."""
    hashed = _hash(source)
    facts = f.struct(f.max(hashed).alias(_HASH), f.count(hashed).alias(_COUNT))
    return rows.groupBy(*_named(_keys(source))).agg(facts.alias(name))


def _hash(source: SourceTable) -> Column:
    fields = spark_columns(source)
    columns = _named(field.name for field in fields)
    # Spark's hash ignores nulls.
    values = [
        as_compared(column, field.dataType) for field, column in zip(fields, columns, strict=True)
    ]
    return f.xxhash64(*values, *(column.isNull() for column in columns))


def _named(names: Iterable[str]) -> list[Column]:
    return [f.col(f"`{name}`") for name in names]
