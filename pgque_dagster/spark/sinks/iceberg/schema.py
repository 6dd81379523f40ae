"""How columns look in an Iceberg table, and which DataFrames fit it."""

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ..files.data_files import HELD_BY_ICEBERG, check_columns, stored_schema

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


def iceberg_columns(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Returns the columns of a DataFrame as its files have them.

    Raises:
        InvalidArgument: if Iceberg has no such type.
    """
    check_columns(schema, HELD_BY_ICEBERG, "Iceberg")
    # Without rows by its plan, so that Spark runs no job.
    return stored_schema(spark.createDataFrame([], schema).limit(0).toArrow().schema)


def kinds(columns: pa.Schema) -> dict[str, str]:
    """Returns the type of each column, without what says where nulls may be."""
    return {field.name: _kind(field.type) for field in columns}


def changed_columns(table: "Table") -> list[str]:
    """Returns the columns that older files have under another name, or another column's name."""
    now = _ids(table.schema())
    names = {number: name for name, number in now.items()}
    ever = [pair for schema in table.schemas().values() for pair in _ids(schema).items()]
    renamed = {names[number] for name, number in ever if names.get(number, name) != name}
    reused = {name for name, number in ever if now.get(name, number) != number}
    return sorted(renamed | reused)


def _ids(schema: "Schema") -> dict[str, int]:
    return {name: schema.find_field(name).field_id for name in schema.column_names}


def _kind(kind: pa.DataType) -> str:
    """A type without what may differ: where nulls may be, and the width of offsets."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_kind(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_kind(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_kind(kind.key_type)}, {_kind(kind.item_type)}>"
    return str(kind).removeprefix("large_")
