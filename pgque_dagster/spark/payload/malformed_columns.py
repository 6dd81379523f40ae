"""The columns that say which events are malformed, and why.

`parse_payloads` and `parse_changes` also share the checks of their arguments, which are here.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from ...client.errors import InvalidArgument, MalformedPayload
from ..reading import arrow

OnMalformedEvent = Literal["fail", "keep"]

# The column of `parse_payloads` and `parse_changes` with the reason that an event is malformed.
WHY = "ev_malformed"

# Whether an event is malformed; its payload, if it is; and the reason.
MALFORMED = "_pgque_malformed"
TEXT = "_pgque_text"
REASON = "_pgque_reason"
REASON_PREFIX = "malformed payload: "

_SAMPLES = 3
_SAMPLE_LENGTH = 200


def with_prefix(reasons: pa.Array) -> pa.Array:
    """Returns the column `REASON` for the reasons of a parser."""
    return pc.binary_join_element_wise(REASON_PREFIX, reasons, "")


def malformed_error(ids: pa.Array, reasons: pa.Array) -> MalformedPayload:
    """Returns the error for malformed events; a reason is null for an event that fits."""
    found = [(n, why) for n, why in zip(ids.to_pylist(), reasons.to_pylist(), strict=True) if why]
    samples = "; ".join(
        f"event {n}: {why.removeprefix(REASON_PREFIX)[:_SAMPLE_LENGTH]}"
        for n, why in islice(found, _SAMPLES)
    )
    return MalformedPayload(
        f"{len(found)} of {len(ids)} events that were read together are malformed: {samples}",
        f"Correct the schema, or pass on_malformed='keep' and handle the rows with {WHY}.",
    )


def check_policy(on_malformed: str, method: str) -> None:
    """Checks the policy of a function that has no ack.

    Args:
        on_malformed: the policy.
        method: the method of `SparkBatch` that does the same with an ack.

    Raises:
        InvalidArgument: if there is no such policy.
    """
    if on_malformed not in get_args(OnMalformedEvent):
        raise InvalidArgument(
            f"on_malformed is {on_malformed!r}, but this DataFrame has no ack to set events aside",
            f"It may be fail or keep; SparkBatch.{method} also has dead_letter and retry.",
        )


def check_columns(events: DataFrame, needed: Iterable[str]) -> None:
    """Checks that a DataFrame has the columns to parse and to keep.

    Raises:
        InvalidArgument: if one is missing.
    """
    if missing := [name for name in needed if name not in events.columns]:
        raise InvalidArgument(
            f"the events have no column {', '.join(missing)}, only {', '.join(events.columns)}",
            "Read it: the option columns of format('pgque') says which columns there are.",
        )


def check_clash(
    names: Sequence[str], what: str, others: Collection[str], other: str, hint: str
) -> None:
    """Checks that two groups of columns have no name in common, as Spark compares names.

    Args:
        names: the columns of one group.
        what: what these are, for the error.
        others: the columns of the other group.
        other: what these are.
        hint: what to do about a common name.

    Raises:
        InvalidArgument: if they have one.
    """
    taken = {name.lower() for name in others}
    if clash := [name for name in names if name.lower() in taken]:
        raise InvalidArgument(f"{clash[0]} is both {what} and {other}", hint)


def check_kept(keep: Sequence[str], fields: Sequence[str]) -> tuple[str, ...]:
    """Returns the event columns to keep.

    Raises:
        InvalidArgument: if events have no such column, or a payload field has its name.
    """
    kept = arrow.check_columns(keep) if keep else ()
    check_clash(
        fields,
        "a payload field",
        kept,
        "an event column to keep",
        "Leave it out of keep, or rename it after payload().",
    )
    return kept
