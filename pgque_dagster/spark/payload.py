"""From JSON payloads to typed columns, with the reason for each that does not fit.

What fits, docs/payloads.md says; `json_parser` reads it, on the driver or where executors are.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from . import wire
from .json_parser import PayloadParser

# An event's id; whether it does not fit; its payload, where it does not; and why.
ID = "_pgque_id"
MALFORMED = "_pgque_malformed"
TEXT = "_pgque_text"
REASON = "_pgque_reason"
REASON_PREFIX = "malformed payload: "


def parse(events: DataFrame, fields: t.StructType, *, keep: Sequence[str]) -> DataFrame:
    """Parses the column ev_data where the events are.

    Args:
        events: a DataFrame with ev_id, ev_data and the columns to keep.
        fields: the fields to read; those that are not nullable must be there, at any depth.
        keep: columns to keep.

    Returns:
        A DataFrame of the kept columns, `ID`, the fields, `MALFORMED`, and `REASON` and `TEXT`
        where that is true.

    Raises:
        InvalidArgument: if the schema cannot be used.
    """
    PayloadParser(fields)
    parse_there = partial(_parse_batches, fields=fields.json(), keep=tuple(keep))
    return events.mapInArrow(parse_there, _schema(fields, keep))


def parse_table(
    spark: SparkSession, events: pa.Table, fields: t.StructType, *, keep: Sequence[str]
) -> DataFrame:
    """Does the same for a few events, here.

    Raises:
        InvalidArgument: if the schema cannot be used.
    """
    parser = PayloadParser(fields)
    columns = [column.combine_chunks() for column in events.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=events.schema)
    parsed = pa.Table.from_batches([_parsed(parser, batch, fields.names, keep)])
    return spark.createDataFrame(parsed, schema=_schema(fields, keep))


def explain(malformed: DataFrame) -> DataFrame:
    """Returns ev_id, `REASON` and `TEXT` of what is malformed of a DataFrame of `parse`."""
    return malformed.select(f.col(ID).alias("ev_id"), REASON, TEXT)


def reason(why: Column) -> Column:
    """Returns `REASON` from a text."""
    return f.concat(f.lit(REASON_PREFIX), why).alias(REASON)


def quoted(name: str) -> str:
    """Returns a column's name as Spark takes it literally."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _parse_batches(
    batches: Iterator[pa.RecordBatch], fields: str, keep: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    schema = t.StructType.fromJson(json.loads(fields))
    parser = PayloadParser(schema)
    for batch in batches:
        yield _parsed(parser, batch, schema.names, keep)


def _parsed(
    parser: PayloadParser, events: pa.RecordBatch, names: Sequence[str], keep: Sequence[str]
) -> pa.RecordBatch:
    texts = events.column("ev_data")
    parsed = parser.parse(texts)
    is_malformed = parsed.reasons.is_valid()
    columns = {
        **{name: events.column(name) for name in keep},
        ID: events.column("ev_id"),
        **dict(zip(names, parsed.columns, strict=True)),
        MALFORMED: is_malformed,
        REASON: pc.binary_join_element_wise(REASON_PREFIX, parsed.reasons, ""),
        TEXT: pc.if_else(is_malformed, texts, None),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _schema(fields: t.StructType, keep: Sequence[str]) -> t.StructType:
    """Returns what `parse` returns: of a malformed payload, what must not be null is."""
    return t.StructType(
        [
            *wire.spark_schema(keep),
            t.StructField(ID, t.LongType()),
            *_nullable(fields),
            t.StructField(MALFORMED, t.BooleanType()),
            t.StructField(REASON, t.StringType()),
            t.StructField(TEXT, t.StringType()),
        ]
    )


def _nullable(data_type: t.StructType) -> t.StructType:
    return t.StructType([t.StructField(x.name, _with_nulls(x.dataType)) for x in data_type])


def _with_nulls(data_type: t.DataType) -> t.DataType:
    if isinstance(data_type, t.StructType):
        return _nullable(data_type)
    if isinstance(data_type, t.ArrayType):
        return t.ArrayType(_with_nulls(data_type.elementType))
    if isinstance(data_type, t.MapType):
        return t.MapType(data_type.keyType, _with_nulls(data_type.valueType))
    return data_type
