"""The events of a batch that one table's replica needs. PostgreSQL selects them."""

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from ...client.models import Slice
from ...client.operation import Call
from ...client.replicas.capture import COPY, REQUEST, copy_request
from ...client.replicas.standing import REDELIVERED
from ...client.session import Session
from ..batch import SparkBatch, attempt_of
from ..payload.changes import EVENT_COLUMNS
from ..reading import arrow
from ..reading.in_tasks import read_in_tasks

# The columns of events from which changes are read.
CHANGE_COLUMNS = (*EVENT_COLUMNS, "ev_txid", "ev_retry")
# Up to so many events, one task reads, parses and writes them: Spark need not shuffle them.
ONE_TASK_EVENTS = 100_000
ONE_TASK_BYTES = 64 * 1024 * 1024


def is_for(consumer: str) -> sql.Composable:
    """Returns the condition that an event is not a copy request for another consumer."""
    return sql.SQL("(ev_type <> {} or not starts_with(ev_data, {}) or ev_data = {})").format(
        COPY, REQUEST, copy_request(consumer)
    )


def is_after(transactions: str) -> sql.Composable:
    """Returns the condition that an event is not in a snapshot: its transaction ended later.

    Args:
        transactions: the snapshot, as `pg_snapshot` prints it: `xmin:xmax:in progress`.
    """
    # It is xid8 in some slices and bigint in others.
    return sql.SQL("not pg_visible_in_snapshot(ev_txid::text::xid8, {}::pg_snapshot)").format(
        transactions
    )


def kinds(session: Session, slices: Sequence[Slice]) -> dict[str, set[str]]:
    """Returns the tables of events and, for each, their types; `REDELIVERED` for a second time.

    Raises:
        StaleReadPlan: if the events are no longer there.
    """
    if not slices:
        return {}
    found: dict[str, set[str]] = {}
    kind = sql.SQL("case when ev_retry is null then ev_type else {} end").format(REDELIVERED)
    columns = f"select ev_extra1, {kind.as_string(None)} from "
    query = " union ".join(f"{columns}{part.rows}" for part in slices).replace("%", "%%")
    for table, each in session.run(Call(query, (), list)):
        found.setdefault(table, set()).add(each)
    return found


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
    """Returns whether one task reads, parses and writes the batch sooner than several."""
    return batch.plan.events <= ONE_TASK_EVENTS and batch.plan.bytes <= ONE_TASK_BYTES
