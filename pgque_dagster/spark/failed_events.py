"""Collects the ids and reasons of failed events from a DataFrame or from ids."""

from array import array
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegralType

from ..client.errors import InvalidArgument


def collect(
    events: DataFrame | Iterable[int], reason: Column | str | None
) -> tuple[Sequence[int], Sequence[str | None] | str | None]:
    """Brings ids to the driver, with eight bytes each, and their reasons if these differ.

    Args:
        events: a DataFrame with the column ev_id, or ids.
        reason: one reason for all, or a column of the DataFrame.

    Returns:
        The ids, without duplicates if they came from a DataFrame, and the reasons in the form that
        `Batch.nack` takes.

    Raises:
        InvalidArgument: if the DataFrame has no column of ids or the column has nulls, or if the
            reason is a column but `events` is not a DataFrame.
    """
    if isinstance(events, DataFrame):
        if isinstance(reason, Column):
            texts = reason.cast("string").alias("reason")
            return from_table(events.select(_id_column(events), texts).toArrow())
        return ids_of(events.select(_id_column(events)).toArrow().column("id").unique()), reason
    if isinstance(reason, Column):
        raise InvalidArgument(
            "the reason is a column, but the events are not a DataFrame", "Pass a text."
        )
    return list(events), reason


def from_table(table: pa.Table) -> tuple["array[int]", list[str | None]]:
    """Returns the columns of a table, ids and reasons, without duplicate ids. Refuses null ids."""
    table = table.rename_columns(["id", "reason"])
    ids = table.column("id")
    if pc.count_distinct(ids).as_py() < len(ids):
        # Single-threaded, so that it is deterministic which duplicate's reason is kept.
        table = table.group_by("id", use_threads=False).aggregate([("reason", "first")])
        table = table.rename_columns({"reason_first": "reason"})
    return ids_of(table.column("id")), _texts(table.column("reason"))


def _id_column(events: DataFrame) -> Column:
    if "ev_id" not in events.columns:
        raise InvalidArgument(
            f"the DataFrame has no column ev_id, only {', '.join(events.columns)}",
            "Keep it: batch.payload(schema, keep=['ev_id']).",
        )
    found = events.schema["ev_id"].dataType
    if not isinstance(found, IntegralType):
        raise InvalidArgument(
            f"the column ev_id is of type {found.simpleString()}, but ids are whole numbers",
            "Pass the ids that events() and payload() return.",
        )
    return f.col("ev_id").cast("bigint").alias("id")


def ids_of(column: pa.Array | pa.ChunkedArray) -> "array[int]":
    """Returns a column of ids as an array of eight bytes each. Refuses nulls."""
    if column.null_count:
        raise InvalidArgument(
            "the DataFrame has rows without an id",
            "Filter them out: an outer join, for example, returns rows that are not events.",
        )
    return array("q", column.to_numpy().tobytes())


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Returns the texts; equal texts share one object, because most reasons are equal."""
    known: dict[str | None, str | None] = {}
    return [known.setdefault(text, text) for chunk in column.chunks for text in chunk.to_pylist()]
