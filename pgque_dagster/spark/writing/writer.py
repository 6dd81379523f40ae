"""`df.write.format("pgque")`: a DataFrame's rows become events of a queue, all or none.

Tasks COPY into a staging of the write's own. Once all are done the driver has the database publish,
in one transaction, what the attempts wrote whose results Spark took. So a failed, repeated or
speculated attempt leaves nothing, and a driver that dies before publishing has sent nothing.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...client import Client
from ...client.calls import staging
from ...client.connection import connect
from ...client.errors import ConnectionFailed, InvalidArgument
from ...client.rights import translated_with_role
from ..address import DatabaseAddress
from .copying import copy_batches
from .event_columns import EventColumns

# If the connection breaks during the commit, its outcome is unknown; publishing again reveals it.
_PAUSES = (1.0, 2.0, 4.0, 8.0)


@dataclass
class Written(WriterCommitMessage):
    """What the attempt at a task that counts wrote: its transaction, and how many events."""

    txid: str
    events: int


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write, read and checked.

    Attributes:
        address: the database: the options `url_env`, `url_file` or `url`, whichever of them is
            there first on the host that writes.
        queue: the queue to publish in.
        type: the type of all events; None where a column says it, or for `default`.
        payload: `json` makes the columns that are no part of an event the payload.
    """

    address: DatabaseAddress
    queue: str
    type: str | None
    payload: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Reads Spark's options.

        Raises:
            InvalidArgument: if one is missing.
        """
        address = DatabaseAddress.parse(options)
        missing = [] if address else ["url"]
        if not options.get("queue"):
            missing.append("queue")
        if address is None or missing:
            raise InvalidArgument(
                f"writing to format('pgque') lacks the option {' and '.join(missing)}",
                "Pass .options(url=…, queue=…); url_env or url_file name where the URL is found.",
            )
        return cls(address, options["queue"], options.get("type"), options.get("payload"))


class PgqueWriter(DataSourceArrowWriter):
    """One write. Made on the driver, and sent to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                f"queue {options.queue} cannot be overwritten",
                "Events are only ever added: write with mode('append').",
            )
        self._address = options.address
        self._columns = EventColumns.of(schema, options.type, options.payload)
        with Client(self._address.resolve()) as client:
            self._staging = client.run(staging.open_staging(options.queue))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one partition into the staging, in a transaction of its own."""
        call = staging.table(self._staging)
        with connect(self._address.resolve()) as connection:
            # By itself: until the end of the transaction it would keep the other tasks waiting.
            with translated_with_role(connection, call.sql):
                table = call.parse(connection.execute(call.sql, call.params).fetchall())
            copied = copy_batches(
                connection,
                sql.Identifier(*table.split(".")),
                self._columns.written,
                map(self._columns.events, iterator),
            )
        return Written(copied.txid, copied.rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes.

        Raises:
            StagingLost: if the server crashed since, and lost what was written.
            ConnectionFailed: if it does not answer; the events are published, or will never be.
        """
        written = [message for message in messages if isinstance(message, Written)]
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
        """Gives the staging up; without a connection, maintenance does so a day later."""
        with Client(self._address.resolve()) as client:
            client.run(staging.abort(self._staging))
