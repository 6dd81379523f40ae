"""A captured table as the source of a replica: its columns, its changes, its rows in a snapshot.

A row is read as the JSON that the table's events have, and parsed by the same reader. So a row that
was copied and a row that an event brought cannot differ.
"""

import re
from collections.abc import Sequence
from functools import partial

from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from ...client.captured_tables import COPY, REQUEST, copy_request
from ...client.operation import Call
from ...client.replicas.deletes import SOFT, Deletes
from ...client.replicas.snapshot import Snapshot, print_settings, row_queries
from ...client.session import Session
from ...client.source_tables import SourceTable
from ...client.table_spec import LIST
from ..address import DatabaseAddress
from ..payload.changes import EVENT_COLUMNS, ChangeFormat
from ..payload.parsing import parse_events
from ..reading.arrow import arrow_schema
from ..reading.table import SIZE, read_queries, row_ranges
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
# Whether a row was deleted. It stands beside the columns of the table.
DELETED = "__pgque_deleted"
# The columns of events from which changes are read.
CHANGE_COLUMNS = (*EVENT_COLUMNS, "ev_txid", "ev_retry")
# A decimal of Spark and of Arrow has at most so many digits.
_DIGITS = 38


def is_after(transactions: str) -> Column:
    """Returns the condition that an event is not in a snapshot: its transaction ended later.

    Args:
        transactions: the snapshot, as `pg_snapshot` prints it: `xmin:xmax:in progress`.
    """
    _, xmax, running = transactions.split(":")
    later = f.col("ev_txid") >= int(xmax)
    in_progress = [int(each) for each in running.split(",") if each]
    return later | f.col("ev_txid").isin(in_progress) if in_progress else later


def is_for(consumer: str) -> Column:
    """Returns the condition that an event does not have another consumer copy a table."""
    data = f.col("ev_data")
    is_request = (f.col("ev_type") == COPY) & data.startswith(REQUEST)
    return ~is_request | (data == copy_request(consumer))


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
                    # Keys are compared, which engines do not do with lists alike.
                    as_lists=source.spec.arrays == LIST and column.name not in source.key,
                ),
                metadata={"comment": column.comment} if column.comment else {},
            )
            for column in source.columns
        ]
    )


def as_compared(value: Column, kind: t.DataType) -> Column:
    """Returns what is compared of a value: of a float its text, since Spark takes -0 for 0.

    Of a list, it is each element and whether it is null, since Spark's hash passes over nulls.
    """
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.transform(value, lambda x: f.struct(as_compared(x, element), x.isNull()))
    return value.cast("string") if isinstance(kind, t.FloatType | t.DoubleType) else value


def net_changes(events: DataFrame, source: SourceTable) -> DataFrame:
    """Returns what the events of a table come to: for each key the last row, or that it is gone.

    Args:
        events: inserts, updates and deletes of this table, with `EVENT_COLUMNS`.
        source: the table.

    Returns:
        The table's columns and `DELETED`, with one row for each key; a deleted one is as it was
        when it was deleted. Spark raises an error whose cause is `MalformedPayload` if an event
        does not fit the table.
    """
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
    """Returns what `net_changes` does, of events that a table missed because one does not fit it.

    Only the last event of each key has to fit, and a delete of it only where its row is kept. It
    reads all keys before, which `net_changes` saves.
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


def rows_at(
    spark: SparkSession,
    session: Session,
    address: DatabaseAddress,
    source: SourceTable,
    snapshot: Snapshot,
) -> DataFrame:
    """Returns a table's rows in a snapshot, which tasks read when the frame is computed.

    Args:
        spark: the session.
        session: of the table's database.
        address: how executors find the database.
        source: the table.
        snapshot: the snapshot, which must be held until the frame is computed.
    """
    size = session.run(Call(SIZE, (source.name,), lambda rows: rows[0][0]))
    name = sql.Literal(source.name).as_string(None)
    queries = [
        f"select 0::bigint as ev_id, 'insert' as ev_type, ev_data, {name} as ev_extra1 "
        f"from ({query}) pgque_copied"
        for query in row_queries(session, source, row_ranges(size))
    ]
    schema = arrow_schema(EVENT_COLUMNS)
    settings = print_settings(session)
    events = read_queries(spark, address, source.name, queries, schema, snapshot.id, settings)
    return _masked(_parsed(events, source).select("row.*"), source)


def _masked(rows: DataFrame, source: SourceTable) -> DataFrame:
    """Puts hashes in place of the values of masked columns, which are read as text."""
    return rows.withColumns({name: f.sha2(f"`{name}`", 256) for name in source.spec.mask})


def _parsed(events: DataFrame, source: SourceTable, keep: Sequence[str] = ()) -> DataFrame:
    form = ChangeFormat(spark_columns(source), source.key or None, "malformed")
    return parse_events(events, form, keep=keep, error=partial(misfit_error, source=source))


def _spark_type(kind: str, *, as_lists: bool = False) -> t.DataType:
    """Returns the type in which Spark holds each value of a type of PostgreSQL; else text."""
    # The text of an array of boxes has other delimiters.
    if as_lists and kind.endswith("[]") and kind != "box[]":
        element = _spark_type(kind.removesuffix("[]"))
        # Iceberg knows no smallint.
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
