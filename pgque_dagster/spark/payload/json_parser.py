"""Parses a column of payloads into typed columns, with a reason for each that does not fit.

msgspec and Arrow read the payloads that they certainly read as docs/payloads.md says. The others,
whether unusual or malformed, are read one by one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ..reading import arrow
from .parsing import OnMalformedEvent, Parsed, Schema, parse_events, parse_schema
from .raw_json import MAX_DEPTH, NotJson, is_too_deep, members
from .types import struct_reader


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
    form = PayloadFormat(parse_schema(events.sparkSession, schema))
    return parse_events(events, form, keep=keep, on_malformed=on_malformed)


class PayloadFormat:
    """Events with JSON payloads.

    Args:
        fields: as for `PayloadParser`.

    Raises:
        InvalidArgument: as for `PayloadParser`.
    """

    needed = ("ev_data",)

    def __init__(self, fields: t.StructType) -> None:
        PayloadParser(fields)
        self._fields = fields
        self.result = arrow.nullable(fields)

    def parser(self) -> Callable[[pa.RecordBatch], Parsed]:
        """Returns a function that parses the payloads of events."""
        parser = PayloadParser(self._fields)
        return lambda events: parser.parse(events.column("ev_data"))


class PayloadParser:
    """Reads JSON payloads as docs/payloads.md says.

    Args:
        fields: the fields to read; those that are not nullable must be present, at any depth.

    Raises:
        InvalidArgument: if a name occurs twice, or no JSON value is read as one of the types.
    """

    def __init__(self, fields: t.StructType) -> None:
        self._reader = struct_reader(fields)
        self._decode = msgspec.json.Decoder(self._reader.annotation).decode

    def parse(self, payloads: pa.Array) -> Parsed:
        """Reads payloads.

        Args:
            payloads: a column of strings. A null is malformed.
        """
        texts = payloads.cast(pa.binary()).to_pylist()
        decoded, refused = self._decoded(texts, _deep(payloads, texts))
        rows, doubts = self._reader.column(decoded)
        # The index of each payload's row; the decoded ones come first.
        places = np.delete(np.arange(len(texts)), refused)
        unsure = refused if doubts is None else [*places[doubts], *refused]
        if not unsure:
            return Parsed(rows.flatten(), pa.nulls(len(texts), pa.string()))
        exact = [self._exact(texts[n]) for n in unsure]
        order = np.empty(len(texts), np.int64)
        order[places] = np.arange(len(places))
        order[unsure] = np.arange(len(rows), len(rows) + len(unsure))
        rows = pa.concat_arrays([rows, pa.array([x for x, _ in exact], rows.type)])
        reasons = np.full(len(texts), None, object)
        reasons[unsure] = [reason for _, reason in exact]
        return Parsed(rows.take(pa.array(order)).flatten(), pa.array(reasons, pa.string()))

    def _decoded(self, texts: list[bytes | None], deep: set[int]) -> tuple[list[Any], list[int]]:
        """Returns the values that msgspec decodes, and the indices of the texts that it refuses.

        Args:
            texts: the payloads.
            deep: indices of texts to refuse in any case.
        """
        decoded: list[Any] = []
        refused: list[int] = []
        left = iter(texts) if not deep else (None if n in deep else x for n, x in enumerate(texts))
        while len(decoded) + len(refused) < len(texts):
            try:
                # No loop in Python. The values decoded before a refused text stay in the list.
                decoded.extend(map(self._decode, left))  # type: ignore[arg-type]
            except (msgspec.DecodeError, TypeError):
                refused.append(len(decoded) + len(refused))
        return decoded, refused

    def _exact(self, text: bytes | None) -> tuple[dict[str, Any], str | None]:
        """Returns the fields of a payload that fit, and the reason if some do not."""
        problems: dict[str, None] = {}
        try:
            fitted = self._reader.fitted(members(text or b""), "", problems)
        except NotJson as error:
            return {}, str(error)
        return fitted, ", ".join(problems) or None


def _deep(payloads: pa.Array, texts: list[bytes | None]) -> set[int]:
    """Returns the indices of payloads with too many levels."""
    # A level takes at least a byte.
    long = pc.indices_nonzero(pc.greater(pc.binary_length(payloads), MAX_DEPTH))
    return {n for n in long.to_pylist() if is_too_deep(texts[n] or b"")}
