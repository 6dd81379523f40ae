"""Reads a table of PostgreSQL into a DataFrame: in parallel, with all parts in one snapshot."""

import socket
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...client.connection import connect
from ...client.errors import ConnectionFailed, InvalidArgument, MalformedPayload, translated
from ..address import DatabaseAddress
from ..cluster.executor_errors import clear_executor_errors
from .arrow import connected, raise_cause
from .in_tasks import read_in_tasks

# 32 MB.
_BLOCKS = 4096
# The largest precision of Spark and Arrow; a numeric without precision gets a scale in the middle.
_DIGITS, _SCALE = 38, 18
_NUMERIC_OID = 1700
# PostgreSQL has scales from -1000 to 1000, and the driver reads the negative ones as 2048 more.
_LARGEST_SCALE, _SCALES = 1000, 2048
_CONVERT = (
    "A text in it has bytes that are not UTF-8, which only databases in SQL_ASCII allow. Such rows "
    "are among those where name ~ '[^[:ascii:]]'. Convert them by an update: if the text is in "
    "LATIN1, to convert_from(convert(convert_to(name, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'UTF8')."
)
# Rows of a view have no ctid. In a partitioned table, each partition has its own ctids.
SIZE = """
select case when c.relkind in ('r', 'm', 'p') then coalesce(max(pg_relation_size(p.oid)), 0) end
from pg_class c
left join lateral (
    select relid as oid from pg_partition_tree(c.oid) union select c.oid
) p on true
where c.oid = %s::regclass
group by c.relkind
"""


def read_whole_table(
    spark: SparkSession,
    url: str,
    address: DatabaseAddress,
    table: str,
    *,
    blocks: int = _BLOCKS,
) -> DataFrame:
    """Returns the rows of a table as they are at the time of the call.

    They are read at once into the storage of the executors (`localCheckpoint`), because the
    snapshot only lasts as long as the transaction. Numerics are decimals.

    Raises:
        InvalidArgument: if there is no such table, or a decimal cannot hold a numeric.
        ConnectionFailed: if the database cannot be reached.
    """
    name = sql.Identifier(*table.split(".")).as_string(None)
    with connect(url) as connection, translated(), connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        ((snapshot,),) = connection.execute("select pg_export_snapshot()").fetchall()
        ((exists,),) = connection.execute("select to_regclass(%s) is not null", [name]).fetchall()
        if not exists:
            raise InvalidArgument(f"there is no table {table}", "Create it, or name another one.")
        columns = connection.execute(f"select * from {name} limit 0".encode()).description or []
        decimals = {
            column.name: _decimal(column.precision, column.scale)
            for column in columns
            if column.type_code == _NUMERIC_OID
        }
        ((size,),) = connection.execute(SIZE.encode(), [name]).fetchall()
        schema = _schema(url, name, decimals)
        queries = [f"select * from {name}{where}" for where in row_ranges(size, blocks)]

        def read(query: str) -> Iterator[pa.RecordBatch]:
            for batch in query_batches(address.resolve(), table, query, snapshot):
                values = [_column(batch.column(each.name), each, table) for each in schema]
                yield pa.RecordBatch.from_arrays(values, schema=schema)

        fields = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        frame = read_in_tasks(spark, queries, read, fields)
        with clear_executor_errors():
            return frame.localCheckpoint()


def query_batches(
    url: str,
    table: str,
    query: str,
    snapshot: str | None,
    settings: Sequence[str] = (),
    *,
    built_in: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Reads the rows of a query, in the types that ADBC gives them.

    Args:
        url: the database.
        table: what is read, for errors.
        query: the query.
        snapshot: the exported snapshot in which it runs; None for its own.
        settings: statements that are executed before the query.
        built_in: whether all columns have types that every database has.

    Raises:
        ConnectionFailed: if this host cannot reach the database, or the connection broke.
    """
    import adbc_driver_manager

    setup = (
        "set transaction isolation level repeatable read, read only",
        *([f"set transaction snapshot '{snapshot}'"] if snapshot is not None else []),
        *settings,
    )
    try:
        with (
            connected(url, built_in=built_in) as connection,
            connection.cursor() as cursor,
        ):
            for statement in (*setup, query):
                cursor.execute(statement)
            yield from cursor.fetch_record_batch()
    except (adbc_driver_manager.Error, OSError) as error:
        try:
            raise_cause(url, query, settings)
        except MalformedPayload as cause:
            told = f"a row of {table} cannot be read: {cause.args[0]}"
            raise MalformedPayload(told, _CONVERT) from cause
        raise ConnectionFailed(
            f"{socket.gethostname()} cannot read {table}: {error}", "Run the step again."
        ) from error


def _schema(url: str, name: str, decimals: dict[str, pa.DataType]) -> pa.Schema:
    with connected(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"select * from {name} limit 0")
        found = cursor.fetch_arrow_table().schema
    plain = [
        field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        for field in found
    ]
    return pa.schema(
        [
            pa.field(name, decimals.get(name, kind))
            for name, kind in zip(found.names, plain, strict=True)
        ]
    )


def _decimal(precision: int | None, scale: int | None) -> pa.DataType:
    if precision is None or scale is None:
        precision, scale = _DIGITS, _SCALE
    elif scale > _LARGEST_SCALE:
        scale -= _SCALES
    digits = max(precision - min(scale, 0), scale)
    return pa.decimal128(min(digits, _DIGITS), min(max(scale, 0), _DIGITS))


def row_ranges(size: int | None, blocks: int = _BLOCKS) -> Iterator[str]:
    """Yields the WHERE clauses of a table's parts. The last has no end, so it misses no row.

    Args:
        size: the table's size in bytes, from `SIZE`; None for what has no blocks.
        blocks: how many blocks a part has.
    """
    count = 1 if size is None else max(1, -(-(size // 8192) // blocks))
    for number in range(count):
        first, end = f"ctid >= '({number * blocks},0)'", f"ctid < '({(number + 1) * blocks},0)'"
        conditions = [*([first] if number else []), *([end] if number < count - 1 else [])]
        yield f" where {' and '.join(conditions)}" if conditions else ""


def _column(values: pa.Array, field: pa.Field, table: str) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    try:
        return pc.cast(values, field.type)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"column {field.name} of {table} has a value that {field.type} cannot hold: {error}",
            "Give the column a precision of at most 38 digits, or read a view that casts it.",
        ) from error
