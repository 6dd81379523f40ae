"""JSON payloads as typed columns."""

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ..reading import arrow
from .parsing import OnMalformedEvent, Parsed, Schema, parse_events, parse_schema
from .reader import RowReader


class PayloadFormat:
    """Events with JSON payloads.

    Args:
        fields: the fields to read; those that are not nullable must be present, at any depth.

    Raises:
        InvalidArgument: if a name occurs twice, or a type cannot be read from JSON.
    """

    needed = ("ev_data",)

    def __init__(self, fields: t.StructType) -> None:
        RowReader(fields)
        self._fields = fields
        self.result = arrow.nullable(fields)

    def parser(self) -> Callable[[pa.RecordBatch], Parsed]:
        """Returns a function that parses the payloads of events."""
        reader = RowReader(self._fields)
        decode = reader.decoder([field.name for field in self._fields if not field.nullable])

        def parse(events: pa.RecordBatch) -> Parsed:
            # Bytes, because msgspec would encode a str again.
            return reader.read(decode, events.column("ev_data").cast(pa.binary()).to_pylist())

        return parse


def parse_payloads(
    events: DataFrame,
    schema: Schema,
    *,
    keep: Sequence[str] = (),
    on_malformed: OnMalformedEvent = "fail",
) -> DataFrame:
    """Returns the JSON payloads of any DataFrame of events as columns, including a stream.

    docs/payloads.md says which types are read how and what is malformed, as for
    `SparkBatch.payload`. There is no ack that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id and ev_data.
        schema: fields to read from the payload, as for `SparkBatch.payload`.
        keep: columns of `events` to put before the fields.
        on_malformed: under `fail`, reading a malformed event fails. `keep` returns such events
            with null in all fields, and adds the column ev_malformed: the reason, or null for an
            event that fits.

    Returns:
        A DataFrame of the `keep` columns, the schema's fields and, under `keep`, ev_malformed.
        Under `fail`, Spark raises an error whose cause is `MalformedPayload`: see
        `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema or a column cannot be used, or the policy is unknown.
    """
    form = PayloadFormat(parse_schema(events.sparkSession, schema))
    return parse_events(events, form, keep=keep, on_malformed=on_malformed)
