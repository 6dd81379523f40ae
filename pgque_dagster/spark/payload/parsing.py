"""Parses JSON payloads into typed columns, with a reason for each payload that does not fit.

docs/payloads.md says what fits. `json_parser` reads the payloads, on the driver or on executors.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ..reading import arrow
from .json_parser import PayloadParser
from .malformed_columns import (
    MALFORMED,
    REASON,
    TEXT,
    WHY,
    OnMalformedEvent,
    check_clash,
    check_columns,
    check_policy,
    malformed_error,
    with_prefix,
)
from .schema import Schema, parse_schema

# The event's id, on executors: a field may be named ev_id.
ID = "_pgque_id"


def parse_payloads(
    events: DataFrame,
    schema: Schema,
    *,
    keep: Sequence[str] = (),
    on_malformed: OnMalformedEvent = "fail",
) -> DataFrame:
    """Returns the JSON payloads of any DataFrame of events as columns, also of a stream.

    docs/payloads.md says what is read as which type and what is malformed, as for
    `SparkBatch.payload`. There is no ack here that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id and ev_data.
        schema: fields to read from the payload, as for `SparkBatch.payload`.
        keep: columns of `events` to put before the fields.
        on_malformed: under `fail`, reading a malformed event fails. `keep` returns such events
            with the fields that could be read, and adds the column ev_malformed: the reason, or
            null for an event that fits.

    Returns:
        A DataFrame of the `keep` columns, the schema's fields and, under `keep`, ev_malformed.
        Under `fail`, Spark raises an error whose cause is `MalformedPayload`: see
        `clear_executor_errors`.

    Raises:
        InvalidArgument: if the schema or a column cannot be used, or there is no such policy.
    """
    check_policy(on_malformed, "payload")
    fields = parse_schema(events.sparkSession, schema)
    PayloadParser(fields)
    needed = needed_columns(keep)
    check_columns(events, needed)
    added = [WHY] if on_malformed == "keep" else []
    check_clash(
        fields.names,
        "a payload field",
        (*keep, *added),
        "another column of the result",
        "Leave it out of the schema or of keep, or rename the column of the events.",
    )
    result = t.StructType([*(events.schema[name] for name in keep), *_nullable(fields)])
    for name in added:
        result = result.add(name, t.StringType())
    parse_there = partial(
        _payloads, fields=fields.json(), names=result.names, fails=on_malformed == "fail"
    )
    return events.select(*map(quoted, needed)).mapInArrow(parse_there, result)


@dataclass(frozen=True)
class PayloadRead:
    """How executors parse the payloads of the events that they read.

    Attributes:
        fields: the fields to read; those that are not nullable must be present, at any depth.
        keep: event columns to keep.
    """

    fields: t.StructType
    keep: tuple[str, ...]

    def check(self) -> None:
        """Checks the fields on the driver.

        Raises:
            InvalidArgument: if they cannot be read.
        """
        PayloadParser(self.fields)

    def schema(self) -> t.StructType:
        """Returns the kept columns, and the fields by number.

        The fields have numbers because a field may have the name of another column, or may differ
        from another field only in case.
        """
        types = [field.dataType for field in _nullable(self.fields)]
        return t.StructType(
            [*arrow.spark_schema(self.keep), *map(t.StructField, self._numbered(), types)]
        )

    def batches(self, events: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Parses events of `needed_columns`.

        Yields:
            Record batches with the columns of `schema`, and `ID`, `MALFORMED`, `REASON` and `TEXT`.
            The last two are null for events that fit.
        """
        parser = PayloadParser(self.fields)
        for batch in events:
            texts = batch.column("ev_data")
            parsed = parser.parse(texts)
            is_malformed = parsed.reasons.is_valid()
            columns = {
                **{name: batch.column(name) for name in self.keep},
                **dict(zip(self._numbered(), parsed.columns, strict=True)),
                ID: batch.column("ev_id"),
                MALFORMED: is_malformed,
                REASON: with_prefix(parsed.reasons),
                TEXT: pc.if_else(is_malformed, texts, None),
            }
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def rows(self, parsed: DataFrame) -> DataFrame:
        """Returns the kept columns, and the fields by their names."""
        numbered = zip(self._numbered(), self.fields.names, strict=True)
        return parsed.select(*self.keep, *(f.col(nr).alias(name) for nr, name in numbered))

    def _numbered(self) -> list[str]:
        return [f"_pgque_{nr}" for nr in range(len(self.fields))]


def needed_columns(keep: Sequence[str]) -> list[str]:
    """Returns the columns that parsing needs, and the columns to keep."""
    return list(dict.fromkeys(("ev_id", "ev_data", *keep)))


@dataclass(frozen=True)
class ParsedTable:
    """Events that were parsed on the driver.

    Attributes:
        rows: the kept columns and the fields of all events.
        fitting: the same of the events that fit.
        malformed: ev_id, `REASON` and `TEXT` of the malformed events.
    """

    rows: pa.Table
    fitting: pa.Table
    malformed: pa.Table


def parse_table(events: pa.Table, fields: t.StructType, *, keep: Sequence[str]) -> ParsedTable:
    """Parses a small number of events on the driver.

    Args:
        events: a table with ev_id, ev_data and the columns to keep.
        fields: as for `PayloadRead`.
        keep: as for `PayloadRead`.

    Raises:
        InvalidArgument: if the schema cannot be used.
    """
    texts = events.column("ev_data").combine_chunks()
    parsed = PayloadParser(fields).parse(texts)
    columns = {name: events.column(name) for name in keep}
    columns |= zip(fields.names, parsed.columns, strict=True)
    rows = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    why = {"ev_id": events.column("ev_id"), REASON: with_prefix(parsed.reasons), TEXT: texts}
    return ParsedTable(
        rows=rows,
        fitting=rows.filter(parsed.reasons.is_null()),
        malformed=pa.table(why).filter(parsed.reasons.is_valid()),
    )


def table_schema(fields: t.StructType, keep: Sequence[str]) -> t.StructType:
    """Returns the Spark schema of the rows of `parse_table`."""
    return t.StructType([*arrow.spark_schema(keep), *_nullable(fields)])


def quoted(name: str) -> str:
    """Returns a column's name in backquotes, so that Spark takes it literally."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _payloads(
    batches: Iterator[pa.RecordBatch], fields: str, names: Sequence[str], fails: bool
) -> Iterator[pa.RecordBatch]:
    """Parses the record batches of `parse_payloads`."""
    schema = t.StructType.fromJson(json.loads(fields))
    parser = PayloadParser(schema)
    for batch in batches:
        parsed = parser.parse(batch.column("ev_data"))
        if fails and parsed.reasons.null_count < batch.num_rows:
            raise malformed_error(batch.column("ev_id"), parsed.reasons)
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        read = dict(zip(schema.names, parsed.columns, strict=True))
        columns = {**given, WHY: parsed.reasons, **read}
        yield pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def _nullable(data_type: t.StructType) -> t.StructType:
    """Returns the type with all fields nullable: a malformed payload leaves nulls in any field."""
    return t.StructType([t.StructField(x.name, _with_nulls(x.dataType)) for x in data_type])


def _with_nulls(data_type: t.DataType) -> t.DataType:
    if isinstance(data_type, t.StructType):
        return _nullable(data_type)
    if isinstance(data_type, t.ArrayType):
        return t.ArrayType(_with_nulls(data_type.elementType))
    if isinstance(data_type, t.MapType):
        return t.MapType(data_type.keyType, _with_nulls(data_type.valueType))
    return data_type
