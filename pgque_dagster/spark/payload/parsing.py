"""Parses events into typed columns, with a reason for each event that does not fit.

A `Format` says what events contain: JSON payloads (`payloads`) or changes of tables (`changes`).
Events are parsed on the driver, in the slices of a batch (`slices`), or in any DataFrame.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, Protocol, get_args

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from ...client.errors import InvalidArgument, MalformedPayload
from ..reading import arrow
from ..reading.in_tasks import map_in_tasks

Schema = t.StructType | str
OnMalformedEvent = Literal["fail", "keep"]

# The column of `parse_events` with the reason that an event is malformed.
WHY = "ev_malformed"

# The event's id and, if it is malformed, the reason and its payload.
ID = "_pgque_id"
REASON = "_pgque_reason"
TEXT = "_pgque_text"
REASONS = t.StructType().add(ID, t.LongType()).add(REASON, t.StringType()).add(TEXT, t.StringType())

_SAMPLES = 3
_SAMPLE_LENGTH = 200


@dataclass(frozen=True)
class Parsed:
    """The parsed events, in their order.

    Args:
        columns: the columns of `Format.result`. A malformed event has null in all fields.
        reasons: why an event is malformed; null if it fits.
    """

    columns: list[pa.Array]
    reasons: pa.Array


class Format(Protocol):
    """The content of events. It is sent to executors."""

    @property
    def needed(self) -> Sequence[str]:
        """The event columns that are parsed."""
        ...

    @property
    def result(self) -> t.StructType:
        """The resulting columns. All are nullable, because of malformed events."""
        ...

    def parser(self) -> Callable[[pa.RecordBatch], Parsed]:
        """Returns a function that parses the columns `needed` of events."""
        ...


@dataclass(frozen=True)
class EventParsing:
    """How events are parsed.

    Args:
        error: makes the error about malformed events from the events and the reasons.
    """

    format: Format
    keep: tuple[str, ...]
    error: Callable[[pa.RecordBatch, pa.Array], MalformedPayload] | None = None

    @property
    def needed(self) -> list[str]:
        """The event columns to read."""
        return list(dict.fromkeys(("ev_id", "ev_data", *self.format.needed, *self.keep)))

    def schema(self, kept: t.StructType | None = None) -> t.StructType:
        """Returns the kept columns, and the result's columns under numbers.

        They have numbers because a field may have the name of another column, or may differ from
        another field only in case.

        Args:
            kept: the kept columns; None for those of events.
        """
        given = arrow.spark_schema(self.keep) if kept is None else kept
        types = [field.dataType for field in self.format.result]
        return t.StructType([*given, *map(t.StructField, self._numbered(), types)])

    def batches(
        self, events: Iterator[pa.RecordBatch], *, fails: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Parses events of the columns `needed`.

        Args:
            events: the events.
            fails: whether to raise `MalformedPayload` at a malformed event.

        Yields:
            Record batches with the columns of `schema` and of `REASONS`.
        """
        parse = self.format.parser()
        names = [*self.keep, *self._numbered(), *REASONS.names]
        for batch in events:
            parsed = parse(batch)
            ids, texts = batch.column("ev_id"), batch.column("ev_data")
            if fails and parsed.reasons.null_count < batch.num_rows:
                raise (self.error or _malformed_error)(batch, parsed.reasons)
            text = pc.if_else(parsed.reasons.is_valid(), texts, None)
            kept = (batch.column(name) for name in self.keep)
            columns = [*kept, *parsed.columns, ids, parsed.reasons, text]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def table(self, events: pa.Table) -> pa.RecordBatch:
        """Parses a small number of events in the same way."""
        columns = [column.combine_chunks() for column in events.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=events.schema)
        return next(self.batches(iter([batch])))

    def rows(self, parsed: DataFrame, *more: str) -> DataFrame:
        """Returns the kept columns, the result's columns by their names, and others."""
        numbered = zip(self._numbered(), self.format.result.names, strict=True)
        return parsed.select(
            *map(_quoted, self.keep), *(f.col(nr).alias(name) for nr, name in numbered), *more
        )

    def place(self, name: str) -> str:
        """Returns the number that names a column of the result."""
        return self._numbered()[self.format.result.names.index(name)]

    def _numbered(self) -> list[str]:
        return [f"_pgque_{nr}" for nr in range(len(self.format.result))]


def explained(parsed: pa.RecordBatch) -> pa.RecordBatch:
    """Returns ev_id, `REASON` and `TEXT` of the malformed events of `EventParsing.batches`."""
    found = parsed.filter(pc.is_valid(parsed.column(REASON))).select(REASONS.names)
    return found.rename_columns(["ev_id", REASON, TEXT])


def fitting(parsed: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the events of `EventParsing.batches` that fit, without their `REASONS`."""
    return without_reasons(parsed.filter(pc.is_null(parsed.column(REASON))))


def without_reasons(parsed: pa.RecordBatch) -> pa.RecordBatch:
    """Returns all events of `EventParsing.batches` without their `REASONS`."""
    return parsed.drop_columns(REASONS.names)


def parse_schema(spark: SparkSession, schema: Schema) -> t.StructType:
    """Returns a schema, which may be DDL, as a StructType.

    Raises:
        InvalidArgument: if it is neither, or has no field.
    """
    if isinstance(schema, str):
        schema = _from_ddl(spark, schema)
    elif not isinstance(schema, t.StructType):
        raise InvalidArgument(
            f"{schema!r} is not a schema", "Pass DDL such as 'id bigint not null', or a StructType."
        )
    if not schema.fields:
        raise InvalidArgument("the payload schema has no field", "Name the fields to read.")
    return schema


def _from_ddl(spark: SparkSession, ddl: str) -> t.StructType:
    try:
        return spark.createDataFrame([], ddl).schema
    except (PySparkException, Py4JError) as error:
        if "char/varchar" in str(error):
            raise InvalidArgument(
                f"{ddl!r} has a char or varchar, which payloads cannot be read as",
                "Write string.",
            ) from error
        raise InvalidArgument(
            f"{ddl!r} is not a schema: {str(error).strip().splitlines()[0]}",
            "Write DDL such as 'id bigint not null, total double'.",
        ) from error


def parse_events(
    events: DataFrame,
    form: Format,
    *,
    keep: Sequence[str] = (),
    on_malformed: OnMalformedEvent = "fail",
    error: Callable[[pa.RecordBatch, pa.Array], MalformedPayload] | None = None,
) -> DataFrame:
    """Parses the events of any DataFrame, including a stream.

    There is no ack that could set malformed events aside.

    Args:
        events: a DataFrame, streaming or not, with the columns ev_id, ev_data and `form.needed`.
        form: what they contain.
        keep: columns of `events` to put before the others.
        on_malformed: under `fail`, reading a malformed event fails. `keep` adds the column
            ev_malformed: the reason, or null for an event that fits.
        error: makes the error that reading a malformed event raises, instead of the usual one.

    Raises:
        InvalidArgument: if a column cannot be used, or the policy is unknown.
    """
    if on_malformed not in get_args(OnMalformedEvent):
        raise InvalidArgument(
            f"on_malformed is {on_malformed!r}, but this DataFrame has no ack to set events aside",
            "It may be fail or keep; payload() and changes() of SparkBatch also have dead_letter.",
        )
    parsing = EventParsing(form, tuple(keep), error)
    if missing := [name for name in parsing.needed if name not in events.columns]:
        raise InvalidArgument(
            f"the events have no column {', '.join(missing)}, only {', '.join(events.columns)}",
            "Read it: the option columns of format('pgque') says which columns there are.",
        )
    fails = on_malformed == "fail"
    check_clash(form, (*keep, *([] if fails else [WHY])))
    schema = parsing.schema(t.StructType([events.schema[name] for name in keep]))
    parsed = map_in_tasks(
        events.select(*map(_quoted, parsing.needed)),
        partial(parsing.batches, fails=fails),
        t.StructType([*schema, *REASONS]),
    )
    if fails:
        return parsing.rows(parsed)
    return parsing.rows(parsed.withColumnRenamed(REASON, WHY), WHY)


def check_clash(form: Format, kept: Collection[str]) -> None:
    """Refuses a kept column with the name of a column of the result, as Spark compares names."""
    taken = {name.lower() for name in kept}
    if clash := [name for name in form.result.names if name.lower() in taken]:
        raise InvalidArgument(
            f"{clash[0]} is both a payload field and another column of the result",
            "Leave it out of the schema or of keep, or rename it after parsing.",
        )


def _malformed_error(events: pa.RecordBatch, reasons: pa.Array) -> MalformedPayload:
    ids = events.column("ev_id")
    found = [(n, why) for n, why in zip(ids.to_pylist(), reasons.to_pylist(), strict=True) if why]
    samples = "; ".join(f"event {n}: {why[:_SAMPLE_LENGTH]}" for n, why in islice(found, _SAMPLES))
    return MalformedPayload(
        f"{len(found)} of {len(ids)} events that were read together are malformed: {samples}",
        f"Correct the schema, or pass on_malformed='keep' and handle the rows with {WHY}.",
    )


def _quoted(name: str) -> str:
    """Returns a column's name in backquotes, so that Spark takes it literally."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
