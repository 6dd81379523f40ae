"""What the events of a table come to: for each key the last row, or that it is gone."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from ...client.source_tables import SourceTable
from ..payload.changes import EVENT_COLUMNS
from ..payload.parsing import parse_events
from .source import change_format

# Whether a row was deleted. It stands beside the columns of the table.
DELETED = "__pgque_deleted"
# The columns of events from which changes are read.
CHANGE_COLUMNS = (*EVENT_COLUMNS, "ev_txid", "ev_retry")


def net_changes(events: DataFrame, table: SourceTable) -> DataFrame:
    """Returns what the events of a table come to.

    Args:
        events: inserts, updates and deletes of this table, with `EVENT_COLUMNS`.
        table: the table.

    Returns:
        The table's columns and `DELETED`, with one row for each key. Of a deleted row, only the
        columns of the key mean anything. Spark raises an error whose cause is `MalformedPayload`
        if an event does not fit the table.
    """
    parsed = parse_events(events, change_format(table), keep=("ev_id",))
    keys = [f.col(f"key.`{name}`") for name in table.key]
    latest = Window.partitionBy(*keys).orderBy(f.col("ev_id").desc())
    last = parsed.withColumn("__pgque_place", f.row_number().over(latest)).where(
        "__pgque_place = 1"
    )
    return last.select("row.*", (f.col("operation") == "delete").alias(DELETED))
