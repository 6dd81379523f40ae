"""The events of a batch that one table's replica needs. PostgreSQL selects them."""

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from ...client.models import Slice
from ...client.replicas.capture import COPY, REQUEST, copy_request
from ..batch import SparkBatch, attempt_of
from ..payload.changes import EVENT_COLUMNS
from ..reading import arrow
from ..reading.in_tasks import read_in_tasks

# The columns of events from which changes are read.
CHANGE_COLUMNS = (*EVENT_COLUMNS, "ev_txid", "ev_retry")
# Up to this many events are read, parsed and written by one task, without a shuffle.
ONE_TASK_EVENTS = 100_000
ONE_TASK_BYTES = 64 * 1024 * 1024


def is_for(consumer: str) -> sql.Composable:
    """Returns the condition that an event is not a copy request for another consumer."""
    return sql.SQL("(ev_type <> {} or not starts_with(ev_data, {}) or ev_data = {})").format(
        COPY, REQUEST, copy_request(consumer)
    )


def read_events(batch: SparkBatch, slices: Sequence[Slice]) -> DataFrame:
    """Returns events of a batch. One task gets all of them if `fits_one_task`."""
    attempt = attempt_of(batch)
    if batch.is_small:
        parts = [arrow.read_table(attempt.url, slices, CHANGE_COLUMNS)]
        schema = arrow.spark_schema(CHANGE_COLUMNS)
        return read_in_tasks(batch.spark, parts, pa.Table.to_batches, schema)
    if fits_one_task(batch):
        slices = [_united(slices)] if slices else []
    return arrow.read_slices(batch.spark, attempt.address, slices, CHANGE_COLUMNS)


def _united(slices: Sequence[Slice]) -> Slice:
    rows = " union all ".join(f"select * from {part.rows}" for part in slices)
    columns = dict.fromkeys(name for part in slices for name in part.set_columns)
    return Slice(rows, f"({rows}) pgque_united", tuple(columns))


def fits_one_task(batch: SparkBatch) -> bool:
    """Returns whether one task reads, parses and writes the batch faster than several."""
    return batch.plan.events <= ONE_TASK_EVENTS and batch.plan.bytes <= ONE_TASK_BYTES
