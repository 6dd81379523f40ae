"""The options of a consumer that say how payloads are read."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from ..spark.batch import SparkBatch
from ..spark.reading.arrow import EVENT_COLUMNS
from .mirror import mirror
from .options import given_as, option, share


def _event_columns(description: str) -> dg.Resolver:
    columns: Any = list[Literal[*EVENT_COLUMNS]]  # type: ignore[valid-type]
    return given_as(columns, description, ["ev_time"])


class Payload(
    mirror(
        SparkBatch.payload,
        leave_out=["self", "schema"],
        keep=_event_columns,
        max_malformed=share,
    )
):
    """Options of `SparkBatch.payload`."""

    # The base class of Pydantic has a method `schema`.
    schema_: Annotated[
        str,
        option("Fields to read from the JSON, as DDL.", "id bigint not null, total double"),
    ] = Field(alias="schema")
