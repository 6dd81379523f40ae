"""Reads a table of PostgreSQL into a DataFrame: in parallel, and all parts in one snapshot."""

import socket
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...client.connection import connect
from ...client.errors import ConnectionFailed, InvalidArgument, translated
from ..address import DatabaseAddress
from ..cluster.executor_errors import clear_executor_errors
from .arrow import connected, raise_cause
from .in_tasks import read_in_tasks

# 32 MB.
_BLOCKS = 4096
# What Spark and Arrow can hold; a numeric without precision gets a scale in the middle.
_DIGITS, _SCALE = 38, 18
_NUMERIC_OID = 1700
# PostgreSQL has scales from -1000 to 1000, and the driver reads the negative ones as 2048 more.
_LARGEST_SCALE, _SCALES = 1000, 2048
# A view has no place of a row. Of a partitioned table, each partition has its own places.
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
    """Returns the rows of a table, which Spark holds as they were at the call.

    The rows are read at once, into the storage of the executors (`localCheckpoint`), because the
    snapshot lasts only as long as the transaction. Numerics are decimals.

    Args:
        spark: the session.
        url: the database, for the driver.
        address: how executors find it.
        table: its name, with a schema or without.
        blocks: how many blocks a task reads.

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
        frame = read_queries(spark, address, table, queries, schema, snapshot)
        with clear_executor_errors():
            return frame.localCheckpoint()


def read_queries(
    spark: SparkSession,
    address: DatabaseAddress,
    table: str,
    queries: Sequence[str],
    schema: pa.Schema,
    snapshot: str,
    settings: Sequence[str] = (),
) -> DataFrame:
    """Returns the rows of queries, each of which a task reads when the frame is computed.

    Args:
        spark: the session.
        address: how executors find the database.
        table: what is read, for errors.
        queries: the queries.
        schema: the columns that they give.
        snapshot: the exported snapshot in which they run; its transaction must last until then.
        settings: statements that each task executes before its query.
    """
    setup = (
        "set transaction isolation level repeatable read, read only",
        f"set transaction snapshot '{snapshot}'",
        *settings,
    )

    def read(query: str) -> Iterator[pa.RecordBatch]:
        import adbc_driver_manager

        try:
            with connected(address.resolve()) as connection, connection.cursor() as cursor:
                for statement in (*setup, query):
                    cursor.execute(statement)
                for batch in cursor.fetch_record_batch():
                    columns = [_column(batch.column(each.name), each, table) for each in schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except (adbc_driver_manager.Error, OSError) as error:
            raise_cause(address.resolve(), query, settings)
            raise ConnectionFailed(
                f"{socket.gethostname()} cannot read {table}: {error}", "Run the step again."
            ) from error

    fields = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return read_in_tasks(spark, queries, read, fields)


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
    """Yields the WHERE clauses of the parts of a table. The last has no end, so no row is left out.

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
