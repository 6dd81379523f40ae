"""The options of a consumer that say how payloads are read."""

import re
from datetime import timedelta
from typing import Annotated, Any

import dagster as dg
from pydantic import Field, WithJsonSchema, field_validator

from ..client.errors import InvalidArgument
from ..spark.payload.malformed import DEFAULT_MAX_MALFORMED, OnMalformed, check_share
from ..spark.reading.arrow import EVENT_COLUMNS
from .options import TEMPLATE, Checked, Options, duration, option, share


def _check_columns(columns: list[str] | str) -> None:
    for column in columns:
        if column not in EVENT_COLUMNS and not re.search(TEMPLATE, column):
            raise ValueError(
                f"events have no column {column!r}; columns are: {', '.join(EVENT_COLUMNS)}"
            )


def _event_columns(description: str, example: list[str]) -> dg.Resolver:
    name = {"anyOf": [{"enum": list(EVENT_COLUMNS)}, {"type": "string", "pattern": TEMPLATE}]}
    column: Any = Annotated[str, WithJsonSchema(name)]
    return Checked(
        lambda context, value: [context.resolve_value(each, as_type=str) for each in value],
        check=_check_columns,
        model_field_type=list[column] | str,
        description=description,
        examples=[example],
    )


class Payload(Options):
    """Options of `SparkBatch.payload`."""

    schema_: Annotated[
        str, option("Fields to read from the JSON, as DDL.", "id bigint not null, total double")
    ] = Field(alias="schema")
    keep: Annotated[
        list[str], _event_columns("Event columns to keep, before the fields.", ["ev_time"])
    ] = Field(default=[])
    on_malformed: Annotated[
        OnMalformed,
        option("What happens to events that do not fit: dead_letter, retry, fail or keep."),
    ] = "dead_letter"
    retry_after: Annotated[
        timedelta, duration("With retry, the wait before they are delivered again.")
    ] = timedelta(minutes=1)
    max_malformed: Annotated[
        float,
        share("The maximum share of a batch's events that may not fit; above it the run fails."),
    ] = DEFAULT_MAX_MALFORMED

    @field_validator("max_malformed", mode="before")
    @classmethod
    def _check_share(cls, value: Any) -> Any:
        try:
            check_share(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return value
