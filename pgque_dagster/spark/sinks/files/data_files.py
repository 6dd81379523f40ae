"""Writes the rows of a DataFrame into Parquet files, with Arrow in Spark's tasks.

Each file has a random name, so attempts at a batch, tasks and speculative copies of tasks never
write to the same file. A file is not read before it is published under the name that is returned
here, and files of tasks that Spark did not accept are never published.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, product

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType

from ....client.errors import InvalidArgument
from ...cluster.executor_errors import clear_executor_errors
from ...reading.in_tasks import map_in_tasks
from ..modes import BATCH_ID
from .storage import Storage

# The size of Arrow data; in a file, it takes a fraction of that.
_ROW_GROUP_BYTES = 64 * 2**20
WRITTEN_FILE = "path string, rows bigint, size bigint, footer binary"
# From these, Spark learns the types of the columns, and that dates are not rebased.
SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
_SPARK_VERSION = "org.apache.spark.version"
# The simple types of Spark that Iceberg, Delta and Spark's own Parquet files hold.
_SIMPLE = """
integer long float double decimal string char varchar binary boolean date timestamp timestamp_ntz
"""
ICEBERG_TYPES = frozenset(_SIMPLE.split())
DELTA_TYPES = ICEBERG_TYPES | {"byte", "short"}
_PARQUET_TYPES = DELTA_TYPES | {"daytimeinterval", "variant"}
_WAYS_OUT = {
    "byte": "Cast {name} to int.",
    "short": "Cast {name} to int.",
    "void": "Cast {name} to the type that it should have.",
    "yearmonthinterval": "Store its months as a number, or cast {name} to string.",
    "time": "Cast {name} to string.",
    "interval": "Use an interval day to second, or cast {name} to string.",
}


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that a task wrote.

    Attributes:
        path: relative to the location.
        footer: its metadata, as a Parquet file without data.
    """

    path: str
    rows: int
    size: int
    footer: bytes

    @classmethod
    def of(cls, row: Row) -> "DataFile":
        """Returns the file that a task names in a row of `WRITTEN_FILE`."""
        return cls(row.path, row.rows, row.size, bytes(row.footer))

    @classmethod
    def of_metadata(cls, path: str, size: int, metadata: pq.FileMetaData) -> "DataFile":
        """Returns a file that has this metadata."""
        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        return cls(path, metadata.num_rows, size, footer.getvalue().to_pybytes())

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The metadata with the statistics of the columns."""
        return pq.read_metadata(pa.BufferReader(self.footer))


def write_files(
    frame: DataFrame,
    storage: Storage,
    folder: str,
    *,
    batch_id: int | None = None,
    arrow: pa.Schema | None = None,
) -> list[DataFile]:
    """Writes the rows of a DataFrame; each task writes one file, or none if it has no rows.

    Args:
        frame: the rows.
        storage: the location, which executors access as the driver does.
        folder: a folder in it that no other attempt uses.
        batch_id: the value of a column `batch_id` that tasks add; None for no such column.
        arrow: the columns of an Iceberg table, with the ids by which readers find them.

    Raises:
        InvalidArgument: if the files cannot hold a column, or two columns differ only in case.
        StorageFailed: if a file cannot be written.
    """
    schema = frame.schema if batch_id is None else with_batch_id(frame.schema)
    check_columns(schema)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in write_rows(batches, storage, folder, schema, batch_id=batch_id, arrow=arrow):
            yield pa.RecordBatch.from_pylist([asdict(file)])

    # The results of the accepted attempts at tasks. Files of other attempts are not listed.
    with clear_executor_errors():
        written = map_in_tasks(frame, write, WRITTEN_FILE).collect()
    return [DataFile.of(row) for row in written]


def write_rows(
    rows: Iterator[pa.RecordBatch],
    storage: Storage,
    folder: str,
    schema: StructType,
    *,
    batch_id: int | None = None,
    arrow: pa.Schema | None = None,
) -> list[DataFile]:
    """Writes rows into one file, in this process; or writes none, if there are no rows.

    Arguments are as for `write_files`; `schema` has the columns of the file.
    """
    groups = (_as_stored(group, batch_id, arrow) for group in _row_groups(rows))
    first = next(groups, None)
    if first is None:
        return []
    path = f"{folder}/part-{uuid.uuid4().hex}.parquet"
    metadata = {SPARK_SCHEMA: schema.json(), _SPARK_VERSION: pyspark.__version__}
    return [_write_file(storage, path, chain([first], groups), first.schema, metadata)]


def with_batch_id(schema: StructType) -> StructType:
    """Returns the columns of a table, with `batch_id`, the batch of each row.

    Raises:
        InvalidArgument: if the DataFrame has a column of this name, in any case.
    """
    for name in schema.names:
        if name.lower() == BATCH_ID:
            raise InvalidArgument(
                f"the column {name} is the sink's own, with the batch of each row",
                "Give it another name: withColumnRenamed().",
            )
    return StructType([*schema.fields, StructField(BATCH_ID, LongType(), nullable=False)])


def check_columns(
    schema: StructType, types: frozenset[str] = _PARQUET_TYPES, format_: str = "Parquet"
) -> None:
    """Raises an `InvalidArgument` that names the column if files cannot hold a column.

    `types` has the simple types that files of the format can hold.
    """
    if not schema.fields:
        raise InvalidArgument("the DataFrame has no columns", "Select the columns to store.")
    seen: dict[str, str] = {}
    for name in schema.names:
        if "." in name or "`" in name:
            raise InvalidArgument(
                f"column {name} has a dot or a backtick in its name, with which Spark does not "
                "find it",
                f"Give it another name: withColumnRenamed({name!r}, …).",
            )
        if (first := seen.setdefault(name.lower(), name)) is not name:
            raise InvalidArgument(
                f"the columns {first} and {name} have the same name for readers, which ignore case",
                "Give one of them another name: withColumnRenamed().",
            )
    for field in schema.fields:
        _check(field.name, field.dataType, types, format_)


def _check(name: str, kind: DataType, types: frozenset[str], format_: str) -> None:
    if isinstance(kind, StructType) and kind.fields:
        for field in kind.fields:
            _check(f"{name}.{field.name}", field.dataType, types, format_)
    elif isinstance(kind, ArrayType):
        _check(f"{name}.element", kind.elementType, types, format_)
    elif isinstance(kind, MapType):
        _check(f"{name}.key", kind.keyType, types, format_)
        _check(f"{name}.value", kind.valueType, types, format_)
    elif kind.typeName() not in types:
        raise InvalidArgument(
            f"column {name} is {kind.simpleString()}, which {format_} files cannot hold",
            _WAYS_OUT.get(kind.typeName(), "Cast {name} to string, or leave it out.").format(
                name=name
            ),
        )


def check_times(table: str, files: Iterable[DataFile]) -> None:
    """Raises `InvalidArgument` for a date or time that the formats' libraries cannot hold."""
    for metadata in (file.metadata for file in files):
        for place, group in product(range(metadata.num_columns), range(metadata.num_row_groups)):
            column = metadata.schema.column(place)
            facts = metadata.row_group(group).column(place).statistics
            try:
                if facts is not None and column.logical_type.type in ("DATE", "TIMESTAMP"):
                    _ = facts.min, facts.max
            except OverflowError:
                raise InvalidArgument(
                    f"column {column.path} for {table} has a time outside the years 1 to 9999",
                    "Filter such rows out, or cast the column to string.",
                ) from None


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns as files have them: nullable, timestamps in UTC, and no large types.

    Spark's null structs have null fields, even if the fields are declared NOT NULL.
    """
    return pa.schema([_stored_field(field) for field in schema])


def _stored_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _stored(field.type), metadata=field.metadata)


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(field) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_stored_field(kind.value_field))
    if pa.types.is_map(kind):
        key = _stored_field(kind.key_field).with_nullable(False)
        return pa.map_(key, _stored_field(kind.item_field))
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _as_stored(rows: pa.Table, batch_id: int | None, arrow: pa.Schema | None) -> pa.Table:
    if batch_id is not None:
        column = pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)
        rows = rows.append_column(BATCH_ID, column)
    stored = stored_schema(rows.schema)
    known = {} if arrow is None else {(field.name, field.type): field for field in arrow}
    return rows.cast(pa.schema([known.get((field.name, field.type), field) for field in stored]))


def _write_file(
    storage: Storage,
    path: str,
    groups: Iterable[pa.Table],
    schema: pa.Schema,
    metadata: dict[str, str],
) -> DataFile:
    with storage.create(path) as output:
        # Decimals are stored like Spark's, as Iceberg demands.
        writer = pq.ParquetWriter(output, schema, store_schema=False, store_decimal_as_integer=True)
        try:
            writer.add_key_value_metadata(metadata)
            for group in groups:
                # One row group, because its size is already limited by bytes.
                writer.write_table(group, row_group_size=group.num_rows)
            writer.close()
        finally:
            # Otherwise a failed writer would write when it is garbage collected.
            writer.is_open = False
        stored = writer.writer.metadata
        size = output.tell()
    return DataFile.of_metadata(path, size, stored)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merges record batches: Spark sends thousands of rows at once, and a row group has more."""
    united: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        united.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(united)
            united, size = [], 0
    if united:
        yield pa.Table.from_batches(united)
