"""The options of a consumer that say how payloads are read."""

import re
from typing import Annotated, Any

import dagster as dg
from pydantic import Field, WithJsonSchema, field_validator

from ..client.errors import InvalidArgument
from ..spark.batch import SparkBatch
from ..spark.payload.malformed import check_share
from ..spark.reading.arrow import EVENT_COLUMNS
from .mirror import mirror
from .options import TEMPLATE, Checked, option, share


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


class Payload(
    mirror(
        SparkBatch.payload,
        leave_out=["self", "schema"],
        keep=lambda text: _event_columns(text, ["ev_time"]),
        max_malformed=share,
    )
):
    """Options of `SparkBatch.payload`."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str,
        option("Fields to read from the JSON, as DDL.", "id bigint not null, total double"),
    ] = Field(alias="schema")

    @field_validator("max_malformed", mode="before")
    @classmethod
    def _check_share(cls, value: Any) -> Any:
        try:
            check_share(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        return value
