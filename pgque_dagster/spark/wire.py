"""How events travel from Postgres to Arrow: the columns, their types, and the read of one slice."""

from collections.abc import Iterable, Iterator, Sequence

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions, dbapi

from ..client.connection import connect
from ..client.errors import ConnectionFailed, InvalidArgument, translated

# Column, Arrow type, Spark DDL type: the columns of a read plan's slice, in its order.
_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("ev_id", pa.int64(), "bigint"),
    ("ev_time", pa.timestamp("us", tz="UTC"), "timestamp"),
    ("ev_txid", pa.int64(), "bigint"),
    ("ev_retry", pa.int32(), "int"),
    ("ev_type", pa.string(), "string"),
    ("ev_data", pa.string(), "string"),
    ("ev_extra1", pa.string(), "string"),
    ("ev_extra2", pa.string(), "string"),
    ("ev_extra3", pa.string(), "string"),
    ("ev_extra4", pa.string(), "string"),
)
EVENT_COLUMNS = tuple(name for name, _, _ in _COLUMNS)

# Around 4 MB a record batch was fastest when measured: docs/decisions/0003-arrow-over-adbc.md.
_BATCH_BYTES = 4 * 1024 * 1024


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the columns to read, all of them for None.

    Raises:
        InvalidArgument: if one is not a column of an event, or none is left.
    """
    if columns is None:
        return EVENT_COLUMNS
    unknown = [column for column in columns if column not in EVENT_COLUMNS]
    if unknown or not columns:
        raise InvalidArgument(
            f"events have no column {', '.join(map(repr, unknown)) or 'left to read'}",
            f"Columns are: {', '.join(EVENT_COLUMNS)}.",
        )
    return tuple(columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the Arrow schema of some of the event columns."""
    types = {name: arrow for name, arrow, _ in _COLUMNS}
    return pa.schema([(column, types[column]) for column in columns])


def spark_schema(columns: Sequence[str]) -> str:
    """Returns the Spark schema of some of the event columns, as DDL."""
    types = {name: ddl for name, _, ddl in _COLUMNS}
    return ", ".join(f"{column} {types[column]}" for column in columns)


def read_slice(url: str, slice_sql: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Reads one slice of a read plan on a connection of its own.

    Args:
        url: the database, as a libpq URI or connection string; pgque_reader is enough.
        slice_sql: the slice, from `batch_read_plan`.
        columns: which columns to fetch.

    Yields:
        Record batches of exactly `arrow_schema(columns)`.

    Raises:
        StaleReadPlan: if the table was truncated or rewritten after planning.
        ConnectionFailed: if the database cannot be reached from here.
    """
    schema = arrow_schema(columns)
    query = f"select {', '.join(columns)} from ({slice_sql}) slice"
    options = {StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_BATCH_BYTES)}
    try:
        with (
            dbapi.connect(url) as connection,
            connection.cursor(adbc_stmt_kwargs=options) as cursor,
        ):
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (adbc_driver_manager.Error, OSError) as error:
        _raise_cause(url, slice_sql)
        raise ConnectionFailed(
            f"reading events failed: {error}", "Check that this host reaches the database."
        ) from error


def read_table(url: str, slices: Iterable[str], columns: Sequence[str]) -> pa.Table:
    """Reads slices one after another into one table of `arrow_schema(columns)`."""
    batches = (batch for slice_sql in slices for batch in read_slice(url, slice_sql, columns))
    return pa.Table.from_batches(batches, schema=arrow_schema(columns))


def _raise_cause(url: str, slice_sql: str) -> None:
    """Raises what the server says to a slice; Arrow's errors come without their SQLSTATE."""
    with connect(url) as connection, translated():
        connection.execute(f"select exists (select from ({slice_sql}) slice)".encode())
