"""A captured table as the source of a replica: its columns, its key, and its rows in a snapshot.

A row is read as the JSON that the table's events have, and parsed by the same reader. So a row that
was copied and a row that an event brought cannot differ.
"""

import re

from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.operation import Call
from ...client.replicas.snapshot import SETTINGS, Snapshot, row_queries
from ...client.session import Session
from ...client.source_tables import SourceTable
from ..address import DatabaseAddress
from ..payload.changes import ChangeFormat
from ..payload.parsing import parse_events
from ..reading.table import SIZE, read_queries, row_ranges

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
# A decimal of Spark and of Arrow has at most so many digits.
_DIGITS = 38
_EVENTS = t.StructType(
    [
        t.StructField("ev_id", t.LongType()),
        *(t.StructField(name, t.StringType()) for name in ("ev_type", "ev_data", "ev_extra1")),
    ]
)


def is_after(transactions: str) -> Column:
    """Returns the condition that an event is not in a snapshot: its transaction ended later.

    Args:
        transactions: the snapshot, as `pg_snapshot` prints it: `xmin:xmax:in progress`.
    """
    _, xmax, running = transactions.split(":")
    later = f.col("ev_txid") >= int(xmax)
    in_progress = [int(each) for each in running.split(",") if each]
    return later | f.col("ev_txid").isin(in_progress) if in_progress else later


def spark_columns(source: SourceTable) -> t.StructType:
    """Returns the columns of a table as Spark reads them, with their comments."""
    return t.StructType(
        [
            t.StructField(
                column.name,
                _spark_type(column.data_type),
                metadata={"comment": column.comment} if column.comment else {},
            )
            for column in source.columns
        ]
    )


def change_format(source: SourceTable) -> ChangeFormat:
    """Returns how events of a table are read."""
    return ChangeFormat(spark_columns(source), source.key, "malformed")


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
    events = read_queries(
        spark,
        address,
        source.name,
        queries,
        _EVENTS,
        snapshot.id,
        SETTINGS,
    )
    return parse_events(events, change_format(source)).select("row.*")


def _spark_type(kind: str) -> t.DataType:
    """Returns the type in which Spark holds each value of a type of PostgreSQL; else text."""
    if simple := _SIMPLE.get(kind):
        return simple
    if found := _NUMERIC.fullmatch(kind):
        precision, scale = int(found[1]), int(found[2])
        if scale <= precision <= _DIGITS:
            return t.DecimalType(precision, scale)
    if found := _TIMESTAMP.fullmatch(kind):
        return t.TimestampType() if found[1] == "with" else t.TimestampNTZType()
    return t.StringType()
