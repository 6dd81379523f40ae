"""Maps the columns of a DataFrame to the fields of an event."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from ...client.errors import InvalidArgument
from ...client.staging import COLUMNS

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
        sources: the DataFrame's column for each field of an event that has one.
        type: the type of all events, if no column has types.
    """

    sources: Mapping[str, str]
    type: str

    @classmethod
    def of(cls, schema: StructType, type: str | None) -> "EventColumns":
        """Maps the columns by their names.

        Raises:
            InvalidArgument: if a column maps to no field, two columns map to one field, or no
                column is the payload.
        """
        sources: dict[str, str] = {}
        others: list[str] = []
        for field in schema:
            part = _NAMES.get(field.name)
            if part is None:
                others.append(field.name)
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
        _check_payload(sources, others)
        if type is not None and "ev_type" in sources:
            raise InvalidArgument(
                f"both the option type and the column {sources['ev_type']} set the events' type",
                "Keep one of them.",
            )
        return cls(sources, type or "default")

    @property
    def written(self) -> tuple[str, ...]:
        """The fields of an event that are written, in order."""
        given = {"ev_type", "ev_data", *self.sources}
        return tuple(part for part in COLUMNS if part in given)

    def events(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the events, with the columns of `written`.

        Raises:
            InvalidArgument: if an event has no type or no payload.
        """
        parts = [self._part(part, batch) for part in self.written]
        for part, values in zip(self.written, parts, strict=True):
            if part in ("ev_type", "ev_data") and values.null_count:
                raise InvalidArgument(
                    f"column {self.sources[part]} is null in {values.null_count} of"
                    f" {len(values)} events",
                    "Each event needs a type and a payload: filter such rows out, or coalesce.",
                )
        return pa.RecordBatch.from_arrays(parts, names=list(self.written))

    def _part(self, part: str, batch: pa.RecordBatch) -> pa.Array:
        if part in self.sources:
            return batch[self.sources[part]]
        return pa.repeat(self.type, batch.num_rows)


def _check_payload(sources: Mapping[str, str], others: list[str]) -> None:
    if others:
        raise InvalidArgument(
            f"an event has no column {', '.join(others)}",
            "It has type, data, extra1 to extra4 and partition_key. Rename or drop the others, or "
            "make them the payload: to_json(struct(...)) as data.",
        )
    if "ev_data" not in sources:
        raise InvalidArgument(
            "no column is the events' payload",
            "Name it data, or make columns the payload: to_json(struct(...)) as data.",
        )
