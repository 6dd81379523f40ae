"""Reads events from PostgreSQL into Arrow: the columns, their types, and the read of a slice."""

import socket
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from ...client.connection import checked, connect
from ...client.errors import ConnectionFailed, InvalidArgument, did_you_mean, prefixed, translated
from ...client.models import Slice
from ..address import DatabaseAddress
from .in_tasks import read_in_tasks

# The columns of a read plan's slice, in its order.
_COLUMNS = {
    "ev_id": pa.int64(),
    "ev_time": pa.timestamp("us", tz="UTC"),
    "ev_txid": pa.int64(),
    "ev_retry": pa.int32(),
    "ev_type": pa.string(),
    "ev_data": pa.string(),
    "ev_extra1": pa.string(),
    "ev_extra2": pa.string(),
    "ev_extra3": pa.string(),
    "ev_extra4": pa.string(),
}
EVENT_COLUMNS = tuple(_COLUMNS)
_OFTEN_NULL = ("ev_retry", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")

# About 4 MB per record batch was fastest in measurements: docs/decisions/0003-arrow-over-adbc.md.
_BATCH_BYTES = 4 * 1024 * 1024


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the columns to read; all columns for None.

    Raises:
        InvalidArgument: if events have no such column, or the list is empty.
    """
    if columns is None:
        return EVENT_COLUMNS
    unknown = [column for column in columns if column not in EVENT_COLUMNS]
    if unknown or not columns:
        raise InvalidArgument(
            f"events have no column {', '.join(map(repr, unknown)) or 'left to read'}",
            f"{did_you_mean(''.join(unknown[:1]), EVENT_COLUMNS)}"
            f"Columns are: {', '.join(EVENT_COLUMNS)}.",
        )
    return tuple(columns)


def parse_columns(text: str | None) -> tuple[str, ...]:
    """Returns the columns of an option such as `ev_id, ev_data`; all columns without the option."""
    with prefixed("option columns of format('pgque')"):
        return check_columns([column.strip() for column in text.split(",")] if text else None)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the Arrow schema of some of the event columns."""
    return pa.schema([(column, _COLUMNS[column]) for column in columns])


def spark_schema(columns: Sequence[str]) -> t.StructType:
    """Returns the Spark schema of some of the event columns."""
    return from_arrow_schema(arrow_schema(columns))


def read_slices(
    spark: SparkSession, address: DatabaseAddress, slices: Sequence[Slice], columns: Sequence[str]
) -> DataFrame:
    """Returns columns of the events of slices, each of which a task reads."""
    return read_in_tasks(
        spark,
        slices,
        lambda part: read_slice(address.resolve(), part, columns),
        spark_schema(columns),
    )


def nullable(schema: t.StructType) -> t.StructType:
    """Returns columns without their metadata, nullable at any depth."""
    return t.StructType([t.StructField(x.name, x.dataType) for x in schema]).toNullable()


def read_slice(url: str, part: Slice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Reads one slice of a read plan on its own connection.

    Columns that are null in all events of the plan are not fetched, and transaction ids are fetched
    as bytes. This halves the processor time of fetching (docs/decisions/0003).

    Args:
        url: the database, as a libpq URI or connection string; the role needs pgque_reader.
        part: the slice.
        columns: which columns to return.

    Yields:
        Record batches of exactly `arrow_schema(columns)`.

    Raises:
        StaleReadPlan: if the table was truncated or rewritten after planning.
        ConnectionFailed: if this host cannot reach the database, or the connection broke.
    """
    # ADBC loads pandas, which takes as long as all of this package.
    import adbc_driver_manager
    from adbc_driver_postgresql import StatementOptions

    wanted = [c for c in columns if c not in _OFTEN_NULL or c in part.set_columns]
    # At least one column, so that the number of rows is known.
    query = f"select {', '.join(dict.fromkeys(wanted or ('ev_id',)))} from {part.rows}"
    schema = arrow_schema(columns)
    options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_BATCH_BYTES)}
    try:
        with (
            connected(url, built_in=True) as connection,
            connection.cursor(adbc_stmt_kwargs=options) as cursor,
        ):
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield _as_declared(batch, schema)
    except (adbc_driver_manager.Error, OSError, pa.ArrowInvalid) as error:
        raise_cause(url, query)
        raise ConnectionFailed(
            f"{socket.gethostname()} lost the connection while it read events: {error}",
            "Read again: a slice has the same events each time.",
        ) from error


@contextmanager
def connected(url: str, *, built_in: bool = False) -> Iterator[Any]:
    """Opens an ADBC connection in UTF-8, because ADBC expects all texts in it.

    Args:
        url: the database.
        built_in: whether only types that every database has are read. Then the types that an
            earlier connection of this process looked up are reused, which saves 40 ms.
    """
    from adbc_driver_manager import AdbcConnection
    from adbc_driver_postgresql import dbapi

    if not built_in:
        with dbapi.connect(checked(url)) as connection:
            yield connection
        return
    try:
        # The connection would close its database, which other connections share.
        with dbapi.Connection(ExitStack(), AdbcConnection(_database(checked(url)))) as connection:
            yield connection
    except BaseException:
        # The types that were looked up may be the cause: the next attempt looks them up again.
        _database.cache_clear()
        raise


@lru_cache(maxsize=8)
def _database(url: str) -> Any:
    """Returns ADBC's object for a database: its address and its types, without a connection."""
    import adbc_driver_postgresql

    return adbc_driver_postgresql.connect(url)


def read_table(url: str, slices: Iterable[Slice], columns: Sequence[str]) -> pa.Table:
    """Reads slices one after another into one table of `arrow_schema(columns)`.

    This is for few events. It does not use ADBC, which first looks up all types of the database.

    Raises:
        StaleReadPlan: if a table was truncated or rewritten after planning.
        ConnectionFailed: if this host cannot reach the database, or the connection broke.
    """
    schema = arrow_schema(columns)
    rows: list[tuple[object, ...]] = []
    with _connected(url) as connection, translated():
        for part in slices:
            query = f"select {', '.join(columns)} from ({part.sql}) slice"
            rows += connection.execute(query.encode(), binary=True).fetchall()
    return pa.Table.from_arrays(
        [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)],
        schema=schema,
    )


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Adds the columns that were not fetched, and gives transaction ids their type."""
    names = batch.schema.names
    arrays = []
    for field in schema:
        if field.name not in names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        elif field.name == "ev_txid":
            arrays.append(_integers(batch.column(field.name)))
        else:
            arrays.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _integers(column: pa.Array) -> pa.Array:
    """Converts xid8, which ADBC returns as eight bytes, the most significant first."""
    values = array("q")
    first = column.offset * values.itemsize
    _, _, content = column.storage.buffers()
    values.frombytes(memoryview(content)[first : first + len(column) * values.itemsize])
    if sys.byteorder == "little":
        values.byteswap()
    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(values)])


def raise_cause(url: str, query: str, settings: Sequence[str] = ()) -> None:
    """Raises the server's error for a query, because ADBC's error has no SQLSTATE."""
    with _connected(url) as connection, translated():
        for setting in settings:
            connection.execute(setting.encode())
        # By COPY, because an event's bytes may be invalid in any encoding.
        with connection.cursor().copy(f"copy ({query}) to stdout".encode()) as rows:
            deque(rows, maxlen=0)


def _connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        return connect(url)
    except ConnectionFailed as error:
        raise ConnectionFailed(
            f"{socket.gethostname()} cannot read events: {error.args[0]}", error.hint
        ) from error
