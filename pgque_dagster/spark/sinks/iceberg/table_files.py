"""The files of an Iceberg table in the form that readers need, and which tables they can read."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimeType,
    UUIDType,
)
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ....client.errors import InvalidArgument
from ..files.data_files import ICEBERG_TYPES, check_columns, stored_schema
from ..files.positions import SearchedFile
from ..files.storage import Storage
from .catalog import file_options
from .deletes import ListedDeletes

# The property that `files_since` returns: since when columns count.
FILES_SINCE = "pgque.schema"
# Arrow compares the values of these as Iceberg's statistics do.
_BOUNDED = (IntegerType, LongType, StringType)


def planned(table: Table, snapshot_id: int | None = None) -> list[FileScanTask]:
    """Returns the data files of a snapshot, by default the newest, with their files of deletes.

    Raises:
        InvalidArgument: if rows are deleted by their values.
    """
    try:
        return list(table.scan(snapshot_id=snapshot_id).plan_files())
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        raise InvalidArgument(
            f"Iceberg table {'.'.join(table.name())} has equality deletes, which cannot be read "
            "here",
            "Compact the table with the engine that wrote them, such as Spark with the jar of "
            "Iceberg: rewrite_data_files.",
        ) from None


def searched(table: Table, tasks: Iterable[FileScanTask]) -> list[SearchedFile]:
    """Returns data files of a table in the form that readers need."""
    root = root_of(table)
    fields = [x for x in table.schema().fields if isinstance(x.field_type, _BOUNDED)]

    def deleted(task: FileScanTask) -> ListedDeletes | None:
        paths = sorted(file.file_path.removeprefix(root) for file in task.delete_files)
        return ListedDeletes(task.file.file_path, paths) if paths else None

    def bounds(file: Entry, field: NestedField) -> tuple[Any, Any]:
        stored = ((x or {}).get(field.field_id) for x in (file.lower_bounds, file.upper_bounds))
        kind = field.field_type
        assert isinstance(kind, PrimitiveType)
        low, high = (None if bound is None else from_bytes(kind, bound) for bound in stored)
        return low, high

    return [
        SearchedFile(
            path_in(table, task.file.file_path),
            task.file.file_size_in_bytes,
            deleted(task),
            {field.name: bounds(task.file, field) for field in fields},
        )
        for task in tasks
    ]


def path_in(table: Table, path: str) -> str:
    """Returns the path of a file, relative to the location of its table."""
    return path.removeprefix(root_of(table))


def root_of(table: Table) -> str:
    """Returns the prefix of the paths of a table's files."""
    return table.location().rstrip("/") + "/"


def spark_columns(table: Table) -> StructType:
    """Returns the columns of a table as Spark's types."""
    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)


def iceberg_columns(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Returns the columns of a DataFrame for its files, if Iceberg has their types."""
    check_columns(schema, ICEBERG_TYPES, "Iceberg")
    # Its plan has no rows, so that Spark runs no job.
    stored = stored_schema(spark.createDataFrame([], schema).limit(0).toArrow().schema)
    comments = [column.metadata.get("comment") for column in schema]
    return pa.schema(
        [
            field.with_metadata({"doc": comment}) if comment else field
            for field, comment in zip(stored, comments, strict=True)
        ]
    )


def foreign_types(table: Table) -> list[str]:
    """Returns the table's types that DataFrames do not have, with their columns."""
    schema = table.schema()
    kinds = {name: schema.find_type(name) for name in schema.column_names}
    foreign = (FixedType, TimeType, UUIDType)
    return [f"type {kind} of {name}" for name, kind in kinds.items() if isinstance(kind, foreign)]


def why_unreadable(
    table: Table, tasks: Sequence[FileScanTask], snapshot_id: int | None = None
) -> str | None:
    """Returns what a reader that only knows the files of a snapshot would misread, or None.

    The names of columns count since a commit replaced all files, if the table has that commit.
    """
    root = root_of(table)
    files = (file for task in tasks for file in (task.file, *task.delete_files))
    if foreign := [file.file_path for file in files if not file.file_path.startswith(root)]:
        return f"files outside its location, such as {foreign[0]}"
    kinds = {file.file_format for task in tasks for file in task.delete_files}
    if other := kinds - {FileFormat.PARQUET}:
        return f"deleted rows listed in files of the format {other.pop().value}"
    # In older files, these columns have another name, or another column has their name.
    now = _ids(table.schema())
    names = {number: name for name, number in now.items()}
    since, last, _ = (-1, -1, 0) if is_set_back(table, snapshot_id) else _since(table)
    ever = [
        pair
        for number, schema in table.schemas().items()
        if number == since or number > last
        for pair in _ids(schema).items()
    ]
    renamed = {names[number] for name, number in ever if names.get(number, name) != name}
    reused = {name for name, number in ever if now.get(name, number) != number}
    if changed := sorted(renamed | reused):
        return f"columns that were renamed, or dropped and added again: {', '.join(changed)}"
    return None


def files_since(state: Table, wanted: TableMetadata) -> dict[str, str]:
    """Returns the property to set with a commit that replaces all files.

    It has the commit's schema, the newest schema (because earlier schemas are reused) and
    the commit's number.
    """
    found = wanted.current_schema_id, max(x.schema_id for x in wanted.schemas)
    return {FILES_SINCE: ",".join(map(str, (*found, state.metadata.next_sequence_number())))}


def is_set_back(table: Table, snapshot_id: int | None = None) -> bool:
    """Returns whether a snapshot, by default the current one, was before all files were replaced.

    The current one is, if the table was set back.
    """
    found = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    snapshot, (_, _, commit) = found or table.current_snapshot(), _since(table)
    return snapshot is not None and (snapshot.sequence_number or 0) < commit


def _since(table: Table) -> tuple[int, int, int]:
    # Earlier versions set only the schema, after which there were newer ones.
    schema, *rest = map(int, table.properties.get(FILES_SINCE, "-1").split(","))
    last, commit = rest or (schema, 0)
    return schema, last, commit


def storage_of(table: Table, storage: Storage) -> Storage:
    """Returns the storage of a table; its location may be a path after `file:`.

    Args:
        table: the table.
        storage: the storage of the warehouse, with its options.
    """
    location = table.location()
    if location.startswith("file:"):
        location = urlsplit(location).path
    return Storage.of(location, file_options(storage))


def _ids(schema: Schema) -> dict[str, int]:
    return {name: schema.find_field(name).field_id for name in schema.column_names}
