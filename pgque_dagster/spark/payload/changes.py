"""Parses the changes of a table that is captured, or has the trigger jsontriga, into columns.

docs/capture.md and docs/triggers.md have the formats; the latter says what is read as which type.
`row_parser` reads an event, on the driver or on executors.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ..reading import arrow
from .malformed_columns import (
    MALFORMED,
    REASON,
    REASON_PREFIX,
    TEXT,
    WHY,
    OnMalformedEvent,
    check_clash,
    check_columns,
    check_policy,
    malformed_error,
    with_prefix,
)
from .parsing import quoted
from .row_parser import ChangeParser, MissingColumns
from .schema import Schema, parse_schema

COLUMNS = ("operation", "table", "key", "row")
EVENT_COLUMNS = ("ev_id", "ev_type", "ev_data", "ev_extra1")


class RowSchema:
    """How the rows of a table are read.

    Args:
        fields: the table's columns to read.
        key: the columns that identify a row.
        missing_columns: how to treat an insert or update that lacks a nullable column: as
            `malformed`, or as `null` in that column.

    Raises:
        InvalidArgument: if the key is empty, the schema lacks a column of the key or has a type
            that no value is read as, or there is no such `missing_columns`.
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
        # Nullable: a malformed event leaves nulls in any column.
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
        """Parses events on the executors.

        Args:
            events: a DataFrame of `EVENT_COLUMNS` and the columns to keep.
            keep: event columns to keep.
            fails: whether a task fails at a malformed event.

        Returns:
            A DataFrame of the kept columns, `COLUMNS`, `MALFORMED`, `REASON` and `TEXT`; the last
            two are null for an event that fits. A truncate has neither key nor row.
        """
        parse_there = partial(_parse_batches, facts=self._facts, keep=tuple(keep), fails=fails)
        columns = list(map(quoted, dict.fromkeys((*EVENT_COLUMNS, *keep))))
        kept = [events.schema[name] for name in keep]
        schema = t.StructType([*kept, *self._spark])
        return events.select(*columns).mapInArrow(parse_there, schema)

    def parse_table(
        self, spark: SparkSession, events: pa.Table, *, keep: Sequence[str]
    ) -> DataFrame:
        """Does the same on the driver, for a small number of events."""
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
    on_malformed: OnMalformedEvent = "fail",
) -> DataFrame:
    """Returns the changes of a table from any DataFrame of events, also of a stream.

    docs/triggers.md says what is read and what is malformed, as for `SparkBatch.changes`. There is
    no ack here that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id, ev_type, ev_data and
            ev_extra1.
        schema: as for `SparkBatch.changes`.
        key: as for `SparkBatch.changes`.
        keep: columns of `events` to put before the others.
        missing_columns: as for `SparkBatch.changes`.
        on_malformed: under `fail`, reading a malformed event fails. `keep` returns such events
            with the values that could be read, and adds the column ev_malformed: the reason, or
            null for an event that fits.

    Returns:
        A DataFrame of the `keep` columns, operation, table, key and row and, under `keep`,
        ev_malformed. Under `fail`, Spark raises an error whose cause is `MalformedPayload`: see
        `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema, the key or a column cannot be used, or there is no such
            policy.
    """
    check_policy(on_malformed, "changes")
    check_columns(events, (*EVENT_COLUMNS, *keep))
    check_clash(
        keep,
        "a column to keep",
        (*COLUMNS, WHY),
        "another column of the result",
        "Leave it out of keep, or rename the column of the events.",
    )
    rows = RowSchema(parse_schema(events.sparkSession, schema), key, missing_columns)
    parsed = rows.parse(events, keep=keep, fails=on_malformed == "fail")
    columns = [*map(quoted, keep), *COLUMNS]
    if on_malformed == "fail":
        return parsed.select(*columns)
    why = f.substr(REASON, f.lit(len(REASON_PREFIX) + 1))
    return parsed.select(*columns, why.alias(WHY))


def _parse_batches(
    batches: Iterator[pa.RecordBatch], facts: tuple[Any, ...], keep: Sequence[str], fails: bool
) -> Iterator[pa.RecordBatch]:
    parser = _parser(*facts)
    for batch in batches:
        parsed = _parsed(parser, batch, keep)
        if fails and pc.any(parsed.column(MALFORMED)).as_py():
            raise malformed_error(batch.column("ev_id"), parsed.column(REASON))
        yield parsed


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
        REASON: with_prefix(parsed.reasons),
        TEXT: pc.if_else(is_malformed, rows, None),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
