"""DataFrames whose rows a function reads in tasks, and functions over them in the same tasks.

Spark takes rows of Python into its JVM one by one, and out again for the next function in Python. A
function over rows that were read here gets them as they were read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

Part = TypeVar("Part")
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class _Source:
    """What the rows of a DataFrame are read by."""

    numbers: DataFrame
    read: Callable[[Batches], Batches]


_SOURCES: WeakKeyDictionary[DataFrame, _Source] = WeakKeyDictionary()


def read_in_tasks(
    spark: SparkSession,
    parts: Sequence[Part],
    read: Callable[[Part], Iterable[pa.RecordBatch]],
    schema: t.StructType,
) -> DataFrame:
    """Returns the rows that a function reads for each part, in a task of its own.

    Args:
        spark: the session.
        parts: what tasks read; sent to all of them.
        read: reads one.
        schema: the columns.
    """

    def read_here(numbers: Batches) -> Batches:
        for batch in numbers:
            for nr in batch.column(0).to_pylist():
                yield from read(parts[nr])

    # Each task has one number of a part.
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    frame = numbers.mapInArrow(read_here, schema)
    _SOURCES[frame] = _Source(numbers, read_here)
    return frame


def renamed(frame: DataFrame, columns: DataFrame) -> DataFrame:
    """Returns a DataFrame that only gives other names to the columns of one that is read here.

    Args:
        frame: what `read_in_tasks` returned.
        columns: a selection of all its columns, in their order.
    """
    _SOURCES[columns] = _SOURCES[frame]
    return columns


def map_in_tasks(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: t.StructType | str
) -> DataFrame:
    """Returns what a function makes of the rows of each partition, as `mapInArrow` does.

    Args:
        frame: any DataFrame.
        function: gets the record batches of a partition.
        schema: the columns of its result.
    """
    source = _SOURCES.get(frame)
    if source is None or frame.is_cached:
        return frame.mapInArrow(function, schema)
    names, read = frame.columns, source.read

    def both(numbers: Batches) -> Batches:
        return function(batch.rename_columns(names) for batch in read(numbers))

    return source.numbers.mapInArrow(both, schema)
