"""Changes of a table, as jsontriga, logutriga and sqltriga publish them, as columns.

Formats, and what is read as which type: docs/triggers.md. Events say themselves which of the first
two made them, and `row_parser` reads them, on the driver or where executors are. A fragment of SQL,
as sqltriga makes it, stays text: an update shows only what changed, and only PostgreSQL reads its
literals rightly.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..client.errors import InvalidArgument, MalformedPayload
from . import wire
from .payload import MALFORMED, REASON, REASON_PREFIX, TEXT, reason
from .row_parser import ChangeParser, MissingColumns
from .row_parser.documents import LETTERS, TRUNCATE
from .schema import Schema, parse_schema

COLUMNS = ("operation", "table", "key", "row")
FRAGMENT_COLUMNS = ("operation", "table", "fragment")
EVENT_COLUMNS = ("ev_id", "ev_type", "ev_data", "ev_extra1")


class RowSchema:
    """How the rows of a table are read.

    Args:
        fields: the table's columns to read.
        key: those that identify a row.
        missing_columns: what an insert or update is that lacks a column which may be null:
            `malformed`, or it has `null` there.

    Raises:
        InvalidArgument: if there is no key, a column of it is not in the schema, no value is read
            as a type of the schema, or there is no such `missing_columns`.
    """

    def __init__(
        self, fields: t.StructType, key: Sequence[str], missing_columns: MissingColumns
    ) -> None:
        choices = get_args(MissingColumns)
        if missing_columns not in choices:
            raise InvalidArgument(
                f"missing_columns is {missing_columns!r}", f"It may be {', '.join(choices)}."
            )
        unknown = [name for name in key if name not in fields.names]
        if isinstance(key, str) or unknown or not key or len(set(key)) < len(key):
            raise InvalidArgument(
                f"the key is {key!r}, but the schema has {', '.join(fields.names)}",
                "List columns of the schema, each once: key=['id'].",
            )
        self._facts = (fields.json(), tuple(key), missing_columns)
        # Of a malformed event, what must not be null is.
        row = t.StructType([t.StructField(x.name, x.dataType) for x in fields])
        self._spark = t.StructType(
            [
                t.StructField("operation", t.StringType()),
                t.StructField("table", t.StringType()),
                t.StructField("key", t.StructType([row[name] for name in key])),
                t.StructField("row", row),
                t.StructField(MALFORMED, t.BooleanType()),
                t.StructField(REASON, t.StringType()),
                t.StructField(TEXT, t.StringType()),
            ]
        )
        ChangeParser(fields, key, missing_columns)

    def parse(
        self, events: DataFrame, *, keep: Sequence[str], is_strict: bool = False
    ) -> DataFrame:
        """Parses events of jsontriga and logutriga where they are.

        Args:
            events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
            keep: event columns to keep.
            is_strict: whether a task fails at a malformed event.

        Returns:
            A DataFrame of the kept columns, `COLUMNS`, `MALFORMED`, and `REASON` and `TEXT` where
            that is true. A truncate has neither key nor row.
        """
        parse_there = partial(
            _parse_batches, facts=self._facts, keep=tuple(keep), is_strict=is_strict
        )
        return events.mapInArrow(parse_there, self._schema(keep))

    def parse_table(
        self, spark: SparkSession, events: pa.Table, *, keep: Sequence[str]
    ) -> DataFrame:
        """Does the same for a few events, here."""
        columns = [column.combine_chunks() for column in events.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=events.schema)
        parsed = _parsed(_parser(*self._facts), batch, keep)
        return spark.createDataFrame(pa.Table.from_batches([parsed]), schema=self._schema(keep))

    def _schema(self, keep: Sequence[str]) -> t.StructType:
        return t.StructType([*wire.spark_schema(keep), *self._spark])


def read_changes(
    events: DataFrame,
    schema: Schema,
    *,
    key: Sequence[str],
    keep: Sequence[str] = (),
    missing_columns: MissingColumns = "malformed",
    on_malformed: Literal["fail", "keep"] = "fail",
) -> DataFrame:
    """Returns changes of a table from any DataFrame of events, such as a stream's.

    What is read, and what is malformed, is as for `SparkBatch.changes`. There is no ack here that
    could set events aside.

    Args:
        events: a DataFrame of format("pgque") with at least the columns ev_id, ev_type, ev_data and
            ev_extra1.
        schema: as for `SparkBatch.changes`.
        key: as for `SparkBatch.changes`.
        keep: event columns to put before.
        missing_columns: as for `SparkBatch.changes`.
        on_malformed: `fail` has the query fail at a malformed event, so that nothing of its
            micro-batch is committed; `keep` returns it with the values that could be read.

    Returns:
        A DataFrame of the `keep` columns, operation, table, key and row, and under `keep` the
        column malformed: the reason, null for an event that fits.

    Raises:
        InvalidArgument: if the schema, the key, a column or an option cannot be used, or a column
            of the events is missing.
    """
    if on_malformed not in ("fail", "keep"):
        raise InvalidArgument(
            f"on_malformed is {on_malformed!r}", "It may be fail or keep: nothing is acked here."
        )
    kept = wire.check_columns(keep) if keep else ()
    missing = [name for name in (*EVENT_COLUMNS, *kept) if name not in events.columns]
    if missing:
        raise InvalidArgument(
            f"the events have no column {', '.join(missing)}",
            "Add it to the option columns of format('pgque'), or leave the option out.",
        )
    rows = RowSchema(parse_schema(events.sparkSession, schema), key, missing_columns)
    parsed = rows.parse(events, keep=kept, is_strict=on_malformed == "fail")
    if on_malformed == "fail":
        return parsed.select(*kept, *COLUMNS)
    return parsed.select(*kept, *COLUMNS, f.col(REASON).alias("malformed"))


def fragments(events: DataFrame, *, keep: Sequence[str]) -> DataFrame:
    """Names what sqltriga published.

    Args:
        events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
        keep: event columns to keep.

    Returns:
        A DataFrame of the kept columns, `FRAGMENT_COLUMNS`, `MALFORMED`, `REASON` and `TEXT`.
    """
    operation = _named(f.col("ev_type"), LETTERS)
    return events.select(
        *keep,
        operation.alias("operation"),
        f.col("ev_extra1").alias("table"),
        f.when(operation != TRUNCATE, f.col("ev_data")).alias("fragment"),
        operation.isNull().alias(MALFORMED),
        reason(f.lit("ev_type is none of sqltriga")),
        f.col("ev_data").alias(TEXT),
    )


def _named(value: Column, names: dict[str, str]) -> Column:
    return f.coalesce(*(f.when(value == given, f.lit(name)) for given, name in names.items()))


def _parse_batches(
    batches: Iterator[pa.RecordBatch], facts: tuple[Any, ...], keep: Sequence[str], is_strict: bool
) -> Iterator[pa.RecordBatch]:
    parser = _parser(*facts)
    for batch in batches:
        parsed = _parsed(parser, batch, keep)
        if is_strict:
            _check(batch.column("ev_id"), parsed.column(MALFORMED), parsed.column(REASON))
        yield parsed


def _check(ids: pa.Array, is_malformed: pa.Array, reasons: pa.Array) -> None:
    if pc.any(is_malformed).as_py():
        nr = pc.index(is_malformed, True).as_py()
        raise MalformedPayload(
            f"event {ids[nr]}: {reasons[nr]}",
            "Correct the schema, or read with on_malformed='keep' and store what the column"
            " malformed explains elsewhere.",
        )


def _parser(fields: str, key: Sequence[str], missing_columns: MissingColumns) -> ChangeParser:
    return ChangeParser(t.StructType.fromJson(json.loads(fields)), key, missing_columns)


def _parsed(parser: ChangeParser, events: pa.RecordBatch, keep: Sequence[str]) -> pa.RecordBatch:
    rows = events.column("ev_data")
    parsed = parser.parse(events.column("ev_type"), rows, events.column("ev_extra1"))
    is_malformed = parsed.reasons.is_valid()
    columns = {
        **{name: events.column(name) for name in keep},
        "operation": parsed.operations,
        "table": parsed.tables,
        "key": parsed.keys,
        "row": parsed.rows,
        MALFORMED: is_malformed,
        REASON: pc.binary_join_element_wise(REASON_PREFIX, parsed.reasons, ""),
        TEXT: pc.if_else(is_malformed, rows, None),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
