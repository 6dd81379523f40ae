"""The options of a consumer that say how payloads are read."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from ..spark.batch import SparkBatch
from ..spark.reading.arrow import EVENT_COLUMNS
from .options import given_as, mirror, option


def _event_columns(description: str) -> dg.Resolver:
    columns: Any = list[Literal[*EVENT_COLUMNS]]  # type: ignore[valid-type]
    return given_as(columns, description, ["ev_time"])


def _share(description: str) -> dg.Resolver:
    # Strict, because otherwise true would be read as 1.
    return given_as(Annotated[float, Field(ge=0, le=1, strict=True)], description, 0.2)


class Payload(
    mirror(
        SparkBatch.payload,
        leave_out=["self", "schema"],
        keep=_event_columns,
        max_malformed=_share,
    )
):
    """Options of `SparkBatch.payload`."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str,
        option("Fields to read from the JSON, as DDL.", "id bigint not null, total double"),
    ] = Field(alias="schema")
