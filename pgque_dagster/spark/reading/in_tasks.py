"""DataFrames whose rows a function reads in tasks, and functions over them in the same tasks.

Spark moves rows from Python into its JVM one by one, and back out for the next Python function.
A function over rows that were read here gets them directly.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

Part = TypeVar("Part")
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class _Source:
    """How the rows of a DataFrame are read."""

    numbers: DataFrame
    read: Callable[[Batches], Batches]


_SOURCES: WeakKeyDictionary[DataFrame, _Source] = WeakKeyDictionary()
# How many modules this process had loaded when it last excluded objects from garbage collection.
_modules = 0


def read_in_tasks(
    spark: SparkSession,
    parts: Sequence[Part],
    read: Callable[[Part], Iterable[pa.RecordBatch]],
    schema: t.StructType | str,
) -> DataFrame:
    """Returns the rows that a function reads for each part, one task per part.

    All parts are sent to all tasks.
    """

    def read_here(numbers: Batches) -> Batches:
        for batch in numbers:
            for nr in batch.column(0).to_pylist():
                yield from read(parts[nr])

    # Each task gets the number of one part.
    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    frame = _mapped(numbers, read_here, schema)
    _SOURCES[frame] = _Source(numbers, read_here)
    return frame


def renamed(frame: DataFrame, columns: DataFrame) -> DataFrame:
    """Returns a DataFrame that only renames the columns of one that is read here.

    Args:
        frame: what `read_in_tasks` returned.
        columns: a selection of all its columns, in their order.
    """
    _SOURCES[columns] = _SOURCES[frame]
    return columns


def as_types(frame: DataFrame, columns: t.StructType) -> DataFrame:
    """Returns columns of a DataFrame, each cast to a type that holds all of its values.

    Args:
        frame: any DataFrame.
        columns: the columns of the result; those that the frame lacks are null.
    """
    source = _SOURCES.get(frame)
    given = {x.name: x.dataType for x in frame.schema}
    if source is None or frame.is_cached:
        values = (f.col(f"`{x.name}`") if x.name in given else f.lit(None) for x in columns)
        cast = (each.cast(x.dataType) for each, x in zip(values, columns, strict=True))
        return frame.select(*(x.alias(name) for name, x in zip(columns.names, cast, strict=True)))
    names, read = columns.names, source.read
    other = {x.name: to_arrow_type(x.dataType) for x in columns if x.dataType != given.get(x.name)}

    def read_as(numbers: Batches) -> Batches:
        for batch in read(numbers):
            found = dict(zip(given, batch.columns, strict=True))
            yield pa.RecordBatch.from_arrays(
                [
                    found[name].cast(other.get(name, found[name].type))
                    if name in found
                    else pa.nulls(batch.num_rows, other[name])
                    for name in names
                ],
                names=names,
            )

    result = _mapped(source.numbers, read_as, columns)
    _SOURCES[result] = _Source(source.numbers, read_as)
    return result


def map_in_tasks(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: t.StructType | str
) -> DataFrame:
    """Returns the result of a function on the rows of each partition, like `mapInArrow`."""
    source = _SOURCES.get(frame)
    if source is None or frame.is_cached:
        return _mapped(frame, function, schema)
    names, read = frame.columns, source.read

    def both(numbers: Batches) -> Batches:
        return function(batch.rename_columns(names) for batch in read(numbers))

    return _mapped(source.numbers, both, schema)


def _mapped(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: t.StructType | str
) -> DataFrame:
    def mapped(batches: Batches) -> Batches:
        _exclude_modules_from_collection()
        return function(batches)

    return frame.mapInArrow(mapped, schema)


def _exclude_modules_from_collection() -> None:
    """Excludes imported modules from garbage collection, in a process that executes tasks.

    PySpark collects garbage after each task, which takes 50 ms with all modules.
    """
    global _modules
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()
