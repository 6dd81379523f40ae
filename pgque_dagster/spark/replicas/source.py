"""A captured table as the source of a replica: its columns, its key, and its rows in a snapshot.

A row is read as the JSON that the table's events have, and parsed by the same reader. So a row that
was copied and a row that an event brought cannot differ.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.calls.call import Call
from ...client.connection import connect
from ...client.errors import TransactionOutdated, translated
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
_TICK_ATTEMPTS = 5
_EVENTS = t.StructType(
    [
        t.StructField("ev_id", t.LongType()),
        *(t.StructField(name, t.StringType()) for name in ("ev_type", "ev_data", "ev_extra1")),
    ]
)
# As the triggers of capture() print values.
_SETTINGS = (
    "set bytea_output = 'hex'",
    "set extra_float_digits = 1",
    "set intervalstyle = 'postgres'",
    "set datestyle = 'iso, ymd'",
    "set timezone = 'UTC'",
    "set row_security = off",
)


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the database that other connections can read in while its block runs.

    Attributes:
        id: for `SET TRANSACTION SNAPSHOT`.
        transactions: which transactions it contains, as `pg_snapshot` prints it.
    """

    id: str
    transactions: str

    @staticmethod
    @contextmanager
    def taken(url: str) -> Iterator["Snapshot"]:
        """Takes a snapshot, and holds it while the block runs."""
        with connect(url) as connection, translated(), connection.transaction():
            connection.execute("set transaction isolation level repeatable read, read only")
            ((found, transactions),) = connection.execute(
                "select pg_export_snapshot(), pg_current_snapshot()::text"
            ).fetchall()
            yield Snapshot(found, transactions)

    @staticmethod
    @contextmanager
    def of_tick(url: str, queue: str) -> Iterator[tuple[int, "Snapshot"]]:
        """Makes a tick of a queue, and holds its snapshot while the block runs.

        Yields:
            The tick, and its snapshot.

        Raises:
            TransactionOutdated: if other tickers were faster each time.
        """
        with connect(url) as holder, translated(), holder.transaction():
            holder.execute("set transaction isolation level repeatable read, read only")
            tick_id = _tick(url, queue, holder)
            ((found, transactions),) = holder.execute(
                "select pg_export_snapshot(), pg_current_snapshot()::text"
            ).fetchall()
            yield tick_id, Snapshot(found, transactions)


def _tick(url: str, queue: str, holder: psycopg.Connection[Any]) -> int:
    """Makes a tick with a snapshot that `holder` has when the tick is committed."""
    for _ in range(_TICK_ATTEMPTS):
        with connect(url) as connection, suppress(psycopg.errors.SerializationFailure):
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                ((tick_id,),) = connection.execute(
                    "select pgque.snapshot_tick(%s)", [queue]
                ).fetchall()
                if tick_id is None:
                    continue
                ((snapshot,),) = connection.execute("select pg_export_snapshot()").fetchall()
                holder.execute(f"set transaction snapshot '{snapshot}'".encode())
            return int(tick_id)
    raise TransactionOutdated(
        f"queue {queue} got no tick in {_TICK_ATTEMPTS} attempts, because other ticks were faster",
        "Verify again.",
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
    columns = session.run(
        Call("select pgque.capture_columns(%s::regclass)", (source.name,), lambda rows: rows[0][0])
    )
    selected = (
        "select 0::bigint as ev_id, 'insert' as ev_type, row_to_json(pgque_row)::text as ev_data, "
        f"{sql.Literal(source.name).as_string(None)} as ev_extra1 "
        f"from (select {columns} from {source.name}{{where}}) pgque_row"
    )
    size = session.run(Call(SIZE, (source.name,), lambda rows: rows[0][0]))
    queries = [selected.replace("{where}", where) for where in row_ranges(size)]
    events = read_queries(
        spark,
        address,
        source.name,
        queries,
        _EVENTS,
        snapshot.id,
        _SETTINGS,
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
