"""Which columns of a DataFrame become which part of an event."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from ...client.calls.staging import COLUMNS
from ...client.errors import InvalidArgument
from . import json_writer

_NAMES = {
    **{name: name for name in COLUMNS},
    **{name.removeprefix("ev_"): name for name in COLUMNS},
    "payload": "ev_data",
    "partition_key": "ev_extra1",
}


@dataclass(frozen=True)
class EventColumns:
    """How rows become events.

    Attributes:
        sources: the DataFrame's column for each part of an event that has one.
        type: the type of all events, where no column gives it.
        in_payload: the columns that make the payload together, as JSON; none if a column is it.
    """

    sources: Mapping[str, str]
    type: str
    in_payload: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, type: str | None, payload: str | None) -> "EventColumns":
        """Reads the names of the columns.

        Args:
            schema: the DataFrame's.
            type: the option of that name.
            payload: the option of that name: `json`, or None.

        Raises:
            InvalidArgument: if a column fits nowhere, or two the same place, or none is the
            payload.
        """
        if payload not in (None, "json"):
            raise InvalidArgument(
                f"option payload of format('pgque') is {payload!r}",
                "Leave it out, or say json to make all other columns the payload.",
            )
        sources: dict[str, str] = {}
        others: list[StructField] = []
        for field in schema:
            part = _NAMES.get(field.name)
            if part is None:
                others.append(field)
                continue
            if part in sources:
                raise InvalidArgument(
                    f"columns {sources[part]} and {field.name} are both the event's {part}",
                    "Drop or rename one.",
                )
            if not isinstance(field.dataType, StringType):
                raise InvalidArgument(
                    f"column {field.name} is {field.dataType.simpleString()}, not text",
                    "Cast it to string, or make it text with to_json.",
                )
            sources[part] = field.name
        if payload is None:
            _check_payload(sources, others)
        else:
            _check_json(sources, others)
        if type is not None and "ev_type" in sources:
            raise InvalidArgument(
                f"both the option type and the column {sources['ev_type']} say the events' type",
                "Keep one.",
            )
        return cls(sources, type or "default", tuple(field.name for field in others))

    @property
    def written(self) -> tuple[str, ...]:
        """The parts of an event that are written, in order."""
        given = {"ev_type", "ev_data", *self.sources}
        return tuple(part for part in COLUMNS if part in given)

    def events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the events' parts, columns as in `written`.

        Raises:
            InvalidArgument: if an event has no type or no payload, or a column for the payload
                holds a value that JSON cannot express.
        """
        parts = [self._part(part, batch) for part in self.written]
        for part, values in zip(self.written, parts, strict=True):
            if part in ("ev_type", "ev_data") and values.null_count:
                raise InvalidArgument(
                    f"column {self.sources[part]} is null in {values.null_count} of"
                    f" {len(values)} events",
                    "Each event has a type and a payload: filter the others out, or coalesce.",
                )
        return pa.RecordBatch.from_arrays(parts, names=list(self.written))

    def _part(self, part: str, batch: pa.RecordBatch) -> pa.Array:
        if part in self.sources:
            return batch[self.sources[part]]
        if part == "ev_type":
            return pa.repeat(self.type, batch.num_rows)
        return json_writer.write_objects(batch.select(list(self.in_payload)))


def _check_payload(sources: Mapping[str, str], others: list[StructField]) -> None:
    if others:
        raise InvalidArgument(
            f"an event has no column {', '.join(field.name for field in others)}",
            "It has type, data, extra1 to extra4 and partition_key. Rename or drop the others, or "
            "make them the payload with .option('payload', 'json').",
        )
    if "ev_data" not in sources:
        raise InvalidArgument(
            "no column is the events' payload",
            "Name it data, or make all other columns the payload with .option('payload', 'json').",
        )


def _check_json(sources: Mapping[str, str], others: list[StructField]) -> None:
    if "ev_data" in sources:
        raise InvalidArgument(
            f"column {sources['ev_data']} is the payload already",
            "Leave the option payload out, or rename the column.",
        )
    if not others:
        raise InvalidArgument("no column is left to make the payload of", "Add one, or data.")
    json_writer.check_types(StructType(others))
