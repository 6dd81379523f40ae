"""Another database, to which a consumer applies each of its batches exactly once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from ..batch import Batch
from ..client import Client
from ..connection import connect
from ..errors import (
    DatabaseError,
    TargetRefused,
    TicksUnavailable,
    TransactionEnded,
    is_refusal,
    translated,
)
from ..last_batch import LastBatch, Span
from ..rights import Connection
from ..ticks import tick_fingerprint
from .delivery import FailedMessages


class TargetDatabase:
    """The target database, and its row with the consumer's last batch."""

    def __init__(self, url: str, queue: str, consumer: str) -> None:
        self._url = url
        self._queue = queue
        self._consumer = consumer
        self._connected: tuple[Connection, LastBatch] | None = None

    def connect(self) -> tuple[Connection, LastBatch]:
        """Connects, unless it is connected, and creates what is missing in the database."""
        if self._connected is None:
            connection = connect(self._url)
            try:
                with translated():
                    self._connected = (
                        connection,
                        LastBatch(connection, self._queue, self._consumer),
                    )
            except BaseException:
                connection.close()
                raise
        return self._connected

    def disconnect(self) -> None:
        """Closes the connection, if there is one."""
        if self._connected is not None:
            self._connected[0].close()
            self._connected = None

    def apply(
        self,
        client: Client,
        batch: Batch,
        failed: FailedMessages,
        apply: Callable[[Connection], object],
    ) -> None:
        """Applies a batch in one transaction, unless the database already has it.

        `failed` then gets the failures of the attempt that applied it.

        Raises:
            TargetOutOfStep: if the batch does not follow the last one that was applied.
        """
        try:
            connection, ledger = self.connect()
            span = Span.of(client, batch.queue, batch.lease)
            with connection.transaction():
                applied = ledger.lock(span, batch.renew)
                if applied:
                    # The failures were not acked yet, so they are written with this ack.
                    failed.load(applied.failed)
                else:
                    apply(connection)
                    ledger.record(span, failed.dump())
        except BaseException:
            self.disconnect()
            raise

    def rewind(self, client: Client) -> None:
        """Moves the consumer to the last batch that the target has."""
        try:
            found = self.connect()[1].read()
        finally:
            self.disconnect()
        lease = client.lease_info(self._queue, self._consumer)
        if found.tick_id is None or (lease and lease.batch_id == found.batch_id):
            # Nothing is applied yet; or the batch is applied and only has to be acked.
            return
        if client.run(tick_fingerprint(self._queue, found.tick_id)) != found.fingerprint:
            raise TicksUnavailable(
                f"queue {self._queue} no longer has tick {found.tick_id} as the target applied it",
                "It was lost or compacted. Compare the target with the source, then call "
                "reset() to continue where the consumer stands.",
            )
        with client.transaction():
            if lease:
                client.finish_batch(lease.batch_id)
            client.seek(self._queue, self._consumer, found.tick_id, skip=True)

    def reset(self) -> None:
        """Makes the database forget its last batch."""
        try:
            self.connect()[1].forget()
        finally:
            self.disconnect()


@contextmanager
def refusing(batch: str) -> Iterator[None]:
    """Raises errors of the target as `TargetRefused`."""
    try:
        yield
    except (psycopg.Error, DatabaseError) as error:
        # The COMMIT in the queue's database belongs to the client.
        cause = error if isinstance(error, psycopg.Error) else error.__cause__
        if not (isinstance(cause, psycopg.Error) and is_refusal(cause)):
            raise
        raise TargetRefused(
            f"{batch} was refused: {cause.diag.message_primary or cause}; nothing of it was "
            "applied or acked",
            cause.diag.message_hint or "Correct the cause, and run the consumer again.",
        ) from cause


@contextmanager
def open_throughout(connection: Connection, batch: str) -> Iterator[None]:
    """Raises `TransactionEnded` if the block ends the transaction around it."""
    ended = TransactionEnded(
        f"the transaction in which {batch} is applied was ended; the batch is not acked, and what "
        "was written may be rolled back or committed",
        "Remove COMMIT, ROLLBACK and close(); raise an error to roll everything back, or use `with "
        "connection.transaction():` around a part.",
    )
    try:
        yield
    except psycopg.Rollback as error:
        raise ended from error
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise ended
