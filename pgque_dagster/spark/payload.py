"""From JSON payloads to typed columns, with a flag for those that do not fit."""

from collections.abc import Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from ..client.errors import InvalidArgument

MALFORMED = "_pgque_malformed"
_CORRUPT = "_pgque_corrupt"


def parse_schema(spark: SparkSession, schema: StructType | str) -> StructType:
    """Returns a schema given as StructType or as DDL.

    Raises:
        InvalidArgument: if the DDL cannot be read, or there is no field.
    """
    if isinstance(schema, str):
        try:
            schema = spark.createDataFrame([], schema).schema
        except PySparkException as error:
            raise InvalidArgument(
                f"{schema!r} is no schema", "Write DDL such as 'id bigint not null, total double'."
            ) from error
    if not schema.fields:
        raise InvalidArgument("the payload schema has no field", "Name the fields to read.")
    return schema


def parse(events: DataFrame, fields: StructType, *, keep: Sequence[str]) -> DataFrame:
    """Parses the column ev_data.

    Args:
        events: a DataFrame with ev_data and the columns to keep.
        fields: the fields to read; those that are not nullable must be there.
        keep: columns to keep.

    Returns:
        A DataFrame of the kept columns, the fields, and the boolean `MALFORMED`.
    """
    struct = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = events.select(*keep, f.from_json("ev_data", struct, options).alias("_pgque_parsed"))
    required = [f.col(f"_pgque_parsed.{quoted(x.name)}").isNull() for x in fields if not x.nullable]
    malformed = reduce(
        Column.__or__,
        required,
        f.col("_pgque_parsed").isNull() | f.col(f"_pgque_parsed.{_CORRUPT}").isNotNull(),
    )
    return parsed.select(
        *keep,
        *(f.col(f"_pgque_parsed.{quoted(x.name)}").alias(x.name) for x in fields),
        malformed.alias(MALFORMED),
    )


def quoted(name: str) -> str:
    """Returns a column's name as Spark takes it literally."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def to_ddl(fields: StructType) -> str:
    """Returns fields as people write them."""
    return ", ".join(
        f"{x.name} {x.dataType.simpleString()}{'' if x.nullable else ' not null'}" for x in fields
    )
