"""A captured table as the source of a replica: its columns and its changes."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from ...client.replicas.deletes import SOFT, Deletes
from ...client.replicas.source import SourceTable
from ...client.replicas.spec import LIST
from ..payload.changes import EVENT_COLUMNS, ChangeFormat
from ..payload.parsing import EventParsing, parse_events
from ..reading.arrow import nullable
from ..reading.in_tasks import map_in_tasks
from ..sinks.files.positions import comparable
from .misfit import misfit_error

_SIMPLE = {
    "smallint": t.ShortType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "boolean": t.BooleanType(),
    "real": t.FloatType(),
    "double precision": t.DoubleType(),
    "bytea": t.BinaryType(),
    "date": t.DateType(),
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_TIMESTAMP = re.compile(r"timestamp(?:\(\d\))? (with|without) time zone")
# Whether a row was deleted. It is added to the table's columns.
DELETED = "__pgque_deleted"
_ID = "id"
# The maximum number of digits in a decimal of Spark and Arrow.
_DIGITS = 38


def spark_columns(source: SourceTable) -> t.StructType:
    """Returns the columns of a table as Spark reads them, with their comments."""
    return t.StructType(
        [
            t.StructField(
                column.name,
                t.StringType()
                if column.name in source.spec.unstorable
                else _spark_type(
                    column.data_type,
                    # Keys are compared, and engines compare lists differently.
                    as_lists=source.spec.arrays == LIST and column.name not in source.key,
                ),
                metadata={"comment": column.comment} if column.comment else {},
            )
            for column in source.columns
        ]
    )


def as_compared(value: Column, kind: t.DataType) -> Column:
    """Returns a value as it is compared: a float as text, because Spark equates -0 and 0.

    For a list, it is each element and whether it is null, because Spark's hash ignores nulls.
    """
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.transform(value, lambda x: f.struct(as_compared(x, element), x.isNull()))
    return value.cast("string") if isinstance(kind, t.FloatType | t.DoubleType) else value


def net_changes(events: DataFrame, source: SourceTable, in_one_task: bool = False) -> DataFrame:
    """Returns the result of a table's events: for each key the last row, or its deletion.

    Args:
        events: inserts, updates and deletes of this table, with `EVENT_COLUMNS`.
        source: the table.
        in_one_task: whether one task reads all events, so that no other one has the same key.

    Returns:
        The table's columns and `DELETED`, with one row for each key; a deleted row has its last
        values. Spark raises an error whose cause is `MalformedPayload` if an event does not fit
        the table.
    """
    if in_one_task:
        rows = _LastRows(source)
        return _masked(map_in_tasks(events, rows.of, rows.schema), source)
    parsed = _parsed(events, source, keep=("ev_id",))
    if not source.key:  # Each is an insert.
        return _masked(parsed.select("row.*", f.lit(False).alias(DELETED)), source)
    keys = [f.col(f"key.`{name}`") for name in source.key]
    latest = Window.partitionBy(*keys).orderBy(f.col("ev_id").desc())
    last = parsed.withColumn("__pgque_place", f.row_number().over(latest)).where(
        "__pgque_place = 1"
    )
    return _masked(last.select("row.*", (f.col("operation") == "delete").alias(DELETED)), source)


def late_changes(events: DataFrame, source: SourceTable, deletes: Deletes) -> DataFrame:
    """Returns what `net_changes` does, for events that a table missed because one does not fit.

    Only the last event of each key has to fit, and if it is a delete, only where its row is
    kept. It reads all keys first, which `net_changes` avoids.
    """
    if not source.key:
        return net_changes(events, source)
    columns = spark_columns(source)
    form = ChangeFormat(t.StructType([columns[name] for name in source.key]), source.key, "null")
    error = partial(misfit_error, source=source)
    keyed = parse_events(events, form, keep=EVENT_COLUMNS, error=error)
    latest = Window.partitionBy("key").orderBy(f.col("ev_id").desc())
    last = keyed.withColumn("__pgque_place", f.row_number().over(latest)).where("__pgque_place = 1")
    if deletes == SOFT:
        return net_changes(last.select(*EVENT_COLUMNS), source)
    is_gone = f.col("ev_type") == "delete"
    there = net_changes(last.where(~is_gone).select(*EVENT_COLUMNS), source)
    gone = last.where(is_gone).select("key.*", f.lit(True).alias(DELETED))
    return there.unionByName(gone, allowMissingColumns=True)


class _LastRows:
    """Finds the last row of each key among all events of a table. It is sent to a task.

    Attributes:
        schema: the table's columns and `DELETED`.
    """

    def __init__(self, source: SourceTable) -> None:
        columns = spark_columns(source)
        self.schema = t.StructType([*nullable(columns), t.StructField(DELETED, t.BooleanType())])
        self._has_key = bool(source.key)
        self._parsing = EventParsing(
            _change_format(source), ("ev_id",), partial(misfit_error, source=source)
        )

    def of(self, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the last rows."""
        needed = (batch.select(self._parsing.needed) for batch in events)
        parsed = list(self._parsing.batches(needed, fails=True))
        if not parsed:
            return
        found = pa.Table.from_batches(parsed).combine_chunks()
        if self._has_key:
            ids, keys = found["ev_id"], found[self._parsing.place("key")].combine_chunks().flatten()
            by_key = pa.table([ids, *keys], [_ID, *map(str, range(len(keys)))])
            by_key = comparable(by_key)
            last = by_key.group_by(by_key.schema.names[1:], use_threads=False)
            last = last.aggregate([(_ID, "max")])[f"{_ID}_max"]
            found = found.filter(pc.is_in(ids, value_set=last))
        for batch in found.to_batches():
            rows = batch[self._parsing.place("row")].flatten()
            is_deleted = pc.equal(batch[self._parsing.place("operation")], "delete")
            yield pa.RecordBatch.from_arrays([*rows, is_deleted], names=self.schema.names)


def _masked(rows: DataFrame, source: SourceTable) -> DataFrame:
    """Replaces the values of masked columns, which are read as text, with hashes."""
    if not source.spec.mask:
        return rows
    return rows.withColumns({name: f.sha2(f"`{name}`", 256) for name in source.spec.mask})


def _parsed(events: DataFrame, source: SourceTable, keep: Sequence[str] = ()) -> DataFrame:
    error = partial(misfit_error, source=source)
    return parse_events(events, _change_format(source), keep=keep, error=error)


def _change_format(source: SourceTable) -> ChangeFormat:
    return ChangeFormat(spark_columns(source), source.key or None, "malformed")


def _spark_type(kind: str, *, as_lists: bool = False) -> t.DataType:
    """Returns the Spark type that can hold each value of a PostgreSQL type, or text."""
    # Arrays of boxes are printed with another delimiter.
    if as_lists and kind.endswith("[]") and kind != "box[]":
        element = _spark_type(kind.removesuffix("[]"))
        # Iceberg has no smallint.
        return t.ArrayType(t.IntegerType() if element == t.ShortType() else element)
    if simple := _SIMPLE.get(kind):
        return simple
    if found := _NUMERIC.fullmatch(kind):
        precision, scale = int(found[1]), int(found[2])
        if scale <= precision <= _DIGITS:
            return t.DecimalType(precision, scale)
    if found := _TIMESTAMP.fullmatch(kind):
        return t.TimestampType() if found[1] == "with" else t.TimestampNTZType()
    return t.StringType()
