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

from ...client.errors import InvalidArgument, MalformedPayload
from ..reading import arrow
from .parsing import MALFORMED, REASON, REASON_PREFIX, TEXT, quoted, reason
from .row_parser import ChangeParser, MissingColumns
from .row_parser.documents import LETTERS, TRUNCATE
from .schema import Schema, parse_schema

COLUMNS = ("operation", "table", "key", "row")
FRAGMENT_COLUMNS = ("operation", "table", "fragment")
# The column of `parse_changes` that says why an event is malformed.
WHY = "ev_malformed"
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

    def parse(self, events: DataFrame, *, keep: Sequence[str], fails: bool = False) -> DataFrame:
        """Parses events of jsontriga and logutriga where they are.

        Args:
            events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
            keep: event columns to keep.
            fails: whether a task fails at a malformed event.

        Returns:
            A DataFrame of the kept columns, `COLUMNS`, `MALFORMED`, and `REASON` and `TEXT` where
            that is true. A truncate has neither key nor row.
        """
        parse_there = partial(_parse_batches, facts=self._facts, keep=tuple(keep), fails=fails)
        columns = list(map(quoted, dict.fromkeys((*EVENT_COLUMNS, *keep))))
        kept = [events.schema[name] for name in keep]
        schema = t.StructType([*kept, *self._spark])
        return events.select(*columns).mapInArrow(parse_there, schema)

    def parse_table(
        self, spark: SparkSession, events: pa.Table, *, keep: Sequence[str]
    ) -> DataFrame:
        """Does the same for a few events, here."""
        columns = [column.combine_chunks() for column in events.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=events.schema)
        parsed = _parsed(_parser(*self._facts), batch, keep)
        schema = t.StructType([*arrow.spark_schema(keep), *self._spark])
        return spark.createDataFrame(pa.Table.from_batches([parsed]), schema=schema)


def parse_changes(
    events: DataFrame,
    schema: Schema,
    *,
    key: Sequence[str],
    keep: Sequence[str] = (),
    missing_columns: MissingColumns = "malformed",
    on_malformed: Literal["fail", "keep"] = "fail",
) -> DataFrame:
    """Returns changes of a table from any DataFrame of events; of a stream, too.

    What is read, and what is malformed, is docs/triggers.md, as for `SparkBatch.changes`. Here is
    no ack that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id, ev_type, ev_data and
            ev_extra1.
        schema: as for `SparkBatch.changes`.
        key: as for `SparkBatch.changes`.
        keep: columns of `events` to put before.
        missing_columns: as for `SparkBatch.changes`.
        on_malformed: `fail` has whatever reads a malformed event fail; `keep` returns such events
            with the values that could be read, and adds the column ev_malformed: the reason, or
            null for an event that fits.

    Returns:
        A DataFrame of the `keep` columns, operation, table, key and row and, under `keep`,
        ev_malformed. Under `fail`, what Spark raises has `MalformedPayload` as its cause: see
        `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema, the key or a column cannot be used, or there is no such
            policy.
    """
    if on_malformed not in ("fail", "keep"):
        raise InvalidArgument(
            f"on_malformed is {on_malformed!r}, but this DataFrame has no ack to set events aside",
            "It may be fail or keep; SparkBatch.changes knows dead_letter and retry.",
        )
    if missing := [name for name in (*EVENT_COLUMNS, *keep) if name not in events.columns]:
        raise InvalidArgument(
            f"the events have no column {', '.join(missing)}, only {', '.join(events.columns)}",
            "Read it: the option columns of format('pgque') says which columns there are.",
        )
    # As Spark compares names.
    if clash := [name for name in keep if name.lower() in (*COLUMNS, WHY)]:
        raise InvalidArgument(
            f"{clash[0]} is both a column to keep and another column of the result",
            "Leave it out of keep, or rename the column of the events.",
        )
    rows = RowSchema(parse_schema(events.sparkSession, schema), key, missing_columns)
    parsed = rows.parse(events, keep=keep, fails=on_malformed == "fail")
    columns = [*map(quoted, keep), *COLUMNS]
    if on_malformed == "fail":
        return parsed.select(*columns)
    why = f.substr(REASON, f.lit(len(REASON_PREFIX) + 1))
    return parsed.select(*columns, why.alias(WHY))


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
    batches: Iterator[pa.RecordBatch], facts: tuple[Any, ...], keep: Sequence[str], fails: bool
) -> Iterator[pa.RecordBatch]:
    parser = _parser(*facts)
    for batch in batches:
        parsed = _parsed(parser, batch, keep)
        if fails:
            _check(batch.column("ev_id"), parsed.column(MALFORMED), parsed.column(REASON))
        yield parsed


def _check(ids: pa.Array, is_malformed: pa.Array, reasons: pa.Array) -> None:
    if pc.any(is_malformed).as_py():
        nr = pc.index(is_malformed, True).as_py()
        raise MalformedPayload(
            f"event {ids[nr]}: {reasons[nr]}",
            f"Correct the schema, or pass on_malformed='keep' and handle the rows with {WHY}.",
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
