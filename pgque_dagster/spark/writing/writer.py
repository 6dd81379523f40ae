"""`df.write.format("pgque")`: publishes a DataFrame's rows as events of a queue, all or none.

Tasks COPY into a staging table of the write. When all are done, the database publishes the rows of
the attempts that Spark accepted, in one transaction. So a failed, repeated or speculative attempt
publishes nothing, nor does a driver that dies before this transaction.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...client import Client, staging
from ...client.connection import connect
from ...client.errors import ConnectionFailed, InvalidArgument
from ...client.rights import translated_with_role
from ..options import WriteOptions
from .copying import copy_batches
from .event_columns import EventColumns

# If the connection breaks during the commit, its outcome is unknown, so publishing is repeated.
_PAUSES = (1.0, 2.0, 4.0, 8.0)


@dataclass
class TaskResult(WriterCommitMessage):
    """What the accepted attempt at a task wrote: its transaction and its number of events."""

    txid: str
    events: int


class PgqueWriter(DataSourceArrowWriter):
    """One write. It is created on the driver and sent to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                f"queue {options.queue} cannot be overwritten",
                "Events can only be added: write with mode('append').",
            )
        self._address = options.address
        self._columns = EventColumns.of(schema, options.type)
        with Client(self._address.resolve()) as client:
            self._staging = client.run(staging.open_staging(options.queue))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Writes one partition into the staging table, in its own transaction."""
        call = staging.table(self._staging)
        with connect(self._address.resolve()) as connection:
            # Not in the COPY's transaction: the call locks a row that the other tasks need.
            with translated_with_role(connection, call.sql):
                table = call.parse(connection.execute(call.sql, call.params).fetchall())
            target, events = sql.Identifier(*table.split(".")), map(self._columns.events, iterator)
            return TaskResult(*copy_batches(connection, target, self._columns.written, events))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes the events.

        Raises:
            StagingLost: if the server crashed in between and lost the staged events.
            ConnectionFailed: if the server does not answer. The events are published already, or
                never will be.
        """
        written = [message for message in messages if isinstance(message, TaskResult)]
        publish = staging.publish(
            self._staging,
            [message.txid for message in written],
            sum(message.events for message in written),
        )
        for pause in (*_PAUSES, None):
            try:
                with Client(self._address.resolve()) as client:
                    client.run(publish)
                return
            except ConnectionFailed:
                if pause is None:
                    raise
                time.sleep(pause)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops the staging table; if this fails, maintenance drops it a day later."""
        with Client(self._address.resolve()) as client:
            client.run(staging.abort(self._staging))
