"""Parses the changes of a table that is captured, or has the trigger jsontriga, into columns.

docs/capture.md and docs/triggers.md have the formats; the latter says what is read as which type.
`row_parser` reads an event, on the driver or on executors.
"""

from collections.abc import Callable, Sequence
from typing import get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from .parsing import OnMalformedEvent, Parsed, Schema, parse_events, parse_schema
from .row_parser import ChangeParser, MissingColumns

EVENT_COLUMNS = ("ev_id", "ev_type", "ev_data", "ev_extra1")


class ChangeFormat:
    """Events with changes of a table.

    Args:
        fields: the table's columns to read.
        key: the columns that identify a row.
        missing_columns: how to treat an insert or update that lacks a nullable column: as
            `malformed`, or as `null` in that column.

    Raises:
        InvalidArgument: if the key is empty, the schema lacks a column of the key or has a type
            that no value is read as, or there is no such `missing_columns`.
    """

    needed = EVENT_COLUMNS

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
        self._facts = (fields, tuple(key), missing_columns)
        ChangeParser(*self._facts)
        row = t.StructType([t.StructField(x.name, x.dataType) for x in fields])
        self.result = t.StructType(
            [
                t.StructField("operation", t.StringType()),
                t.StructField("table", t.StringType()),
                t.StructField("key", t.StructType([row[name] for name in key])),
                t.StructField("row", row),
            ]
        )

    def parser(self) -> Callable[[pa.RecordBatch], Parsed]:
        """Returns a function that parses events."""
        parser = ChangeParser(*self._facts)
        return lambda events: parser.parse(*map(events.column, EVENT_COLUMNS[1:]))


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
        ev_malformed. A truncate has neither key nor row. Under `fail`, Spark raises an error whose
        cause is `MalformedPayload`: see `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema, the key or a column cannot be used, or there is no such
            policy.
    """
    form = ChangeFormat(parse_schema(events.sparkSession, schema), key, missing_columns)
    return parse_events(events, form, keep=keep, on_malformed=on_malformed)
