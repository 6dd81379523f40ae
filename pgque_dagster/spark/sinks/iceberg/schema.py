"""How columns look in an Iceberg table, and which DataFrames fit it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ....client import InvalidArgument
from ..files.data_files import check_columns, stored_schema
from ..modes import SchemaEvolution
from ..tables import check_names

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

# The simple types of Spark that are types of Iceberg.
_HELD = frozenset(
    (
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "string",
        "char",
        "varchar",
        "binary",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
    )
)


def iceberg_columns(spark: SparkSession, schema: StructType) -> pa.Schema:
    """Returns the columns of a DataFrame as its files have them.

    Raises:
        InvalidArgument: if Iceberg has no such type.
    """
    check_columns(schema, _HELD, "Iceberg")
    # Without rows by its plan, so that Spark runs no job.
    return stored_schema(spark.createDataFrame([], schema).limit(0).toArrow().schema)


def check_fit(
    table: str,
    stored: pa.Schema,
    required: Sequence[str],
    given: pa.Schema,
    evolution: SchemaEvolution,
) -> bool:
    """Compares the columns of a DataFrame with those of the table.

    Args:
        table: the table's name for errors.
        stored: the columns of the table.
        required: the names of those that must not be null.
        given: the columns of the DataFrame.
        evolution: whether the table may get columns.

    Returns:
        Whether the table needs more columns.

    Raises:
        InvalidArgument: if the rows do not fit the table.
    """
    for name in given.names:
        if name not in stored.names:
            continue
        kinds = _kind(stored.field(name).type), _kind(given.field(name).type)
        if kinds[0] != kinds[1]:
            raise InvalidArgument(
                f"column {name} of {table} is {kinds[0]}, and the DataFrame's is {kinds[1]}",
                f"Cast {name} in Spark, or store into another table.",
            )
    return bool(check_names(table, stored.names, required, given.names, evolution))


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
