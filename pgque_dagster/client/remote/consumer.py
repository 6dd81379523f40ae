"""The consumer that applies batches in another database, each exactly once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from ..batch import DEFAULT_TTL, NO_LIMITS, Batch
from ..client import Client
from ..connection import connect
from ..consumer import Consumer, Delivery
from ..consumer.delivery import Failed, Pages
from ..consumer.dispatch import Dispatch, is_refusal
from ..consumer.handlers import Function
from ..errors import (
    DatabaseError,
    InvalidArgument,
    TargetRefused,
    TicksUnavailable,
    TransactionEnded,
    translated,
)
from ..models import Limits
from ..ranges import Position
from ..rights import Connection
from ..ticks import tick_fingerprint
from .completed import CompletedBatches, Span

F = TypeVar("F", bound=Function)

# Applies all events of a batch on a connection of the target.
Apply = Callable[[Sequence[Delivery], Connection], object]
# Checks what the consumer needs in the target, on a connection in autocommit mode.
Check = Callable[[Connection], object]


class RemoteConsumer(Consumer):
    """Consumes a queue, and applies its events in another database, each exactly once.

    Handlers get the message and a connection to the target. What they write there commits together
    with a row that names the batch, and then the batch is acked. So if the process is killed before
    the commit, nothing was applied, and if it is killed between the commit and the ack, the next
    process finds the row and only acks. docs/movers.md has the details.

    It is composed of a source, an apply step (the handlers, or the function `apply`), and the
    record of what the target has (`completed.py`).

    Args:
        url: the database of the queue.
        queue: the queue's name.
        name: the consumer's name. Consumers of different databases that apply to one target need
            different names.
        target: the database to apply to; None for that of the queue, where one transaction applies
            the batch and acks it.
        apply: applies a batch as a whole, instead of handlers for its events. It gets the messages,
            in order, and a connection to the target, in a transaction; `nack` and `dead_letter` of
            a message take effect with the ack. If it raises, the batch is rolled back and is not
            acked.
        check: is called each time that the consumer connects to the target, with a connection in
            autocommit mode, and raises if something is missing there.
        start_at: where the consumer starts if it is not registered, such as `latest`. By default
            it must be registered.
        retry_after: how long an event that failed waits for its next delivery.
        limits: which batches to open.
        lease: how long other processes wait for a batch if this one is killed.
        poll_interval: the longest wait between two checks for batches.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        target: str | None = None,
        apply: Apply | None = None,
        check: Check | None = None,
        start_at: Position | None = None,
        retry_after: timedelta = timedelta(minutes=1),
        limits: Limits = NO_LIMITS,
        lease: timedelta = DEFAULT_TTL,
        poll_interval: timedelta = timedelta(seconds=5),
    ) -> None:
        super().__init__(
            url,
            queue,
            name,
            start_at=start_at,
            retry_after=retry_after,
            limits=limits,
            lease=lease,
            poll_interval=poll_interval,
        )
        self._target = target
        self._apply_whole = apply
        self._check_target = check or (lambda connection: None)
        self._completed = CompletedBatches(queue, name)
        self._target_connection: Connection | None = None

    def on(self, *types: str, transactional: bool = True) -> Callable[[F], F]:
        """Decorates the handler of some types of events, or without a type that of all others.

        Args:
            *types: the types.
            transactional: the handler is called with the message and a connection to the target;
                there is no other kind of handler here.
        """
        if self._apply_whole or not transactional:
            raise InvalidArgument(
                f"consumer {self.name} applies whole batches, without handlers"
                if self._apply_whole
                else "a handler of a RemoteConsumer gets a connection to the target",
                "Use a RemoteConsumer for handlers, and a Consumer for those without a connection.",
            )
        return super().on(*types, transactional=True)

    def run(self) -> None:
        """Applies batches until `stop`, SIGTERM or SIGINT; a second signal ends it at once.

        If a connection breaks later, it reconnects after a wait that grows up to 30 seconds.

        Raises:
            TargetOutOfStep: if a batch does not follow the last one that the target applied.
            TargetRefused: if the target refuses what is applied.
            PgqueError: as for `Consumer.run`, and the same for the target.
        """
        try:
            self._connect()
            super().run()
        finally:
            self._disconnect()

    def rewind(self) -> None:
        """Moves the consumer to where the target ends, forward or back.

        For a consumer that is out of step with its target (`TargetOutOfStep`), while nothing runs
        it. Events between are delivered again, or passed over because the target has them.

        Raises:
            TicksUnavailable: if the queue has no longer the tick at which the target ends.
            InvalidArgument: if that tick is no longer retained.
            BatchLeased: if a process runs the consumer.
        """
        with Client(self._url) as client, self._connected_target() as connection:
            found = self._completed.read(connection)
            lease = client.lease_info(self.queue, self.name)
            if found.tick_id is None or (lease and lease.batch_id == found.batch_id):
                # Nothing is applied; or the batch is applied and only has to be acked.
                return
            tick = tick_fingerprint(self.queue, found.tick_id)
            if client.run(tick) != found.fingerprint:
                raise TicksUnavailable(
                    f"queue {self.queue} has no tick {found.tick_id} as the target has applied it",
                    "It was lost or compacted. Compare the target with the source, then call "
                    "reset() to continue where the consumer stands.",
                )
            with client.transaction():
                if lease:
                    client.finish_batch(lease.batch_id)
                client.seek(self.queue, self.name, found.tick_id, skip=True)

    def reset(self) -> None:
        """Makes the target forget where it ends, so that it takes the consumer's next batch.

        Events that the target has applied already are applied again, and those it lacks stay
        missing, unless you move the consumer with `seek`.
        """
        with self._connected_target() as connection:
            self._completed.forget(connection)

    def _check_handlers(self) -> None:
        if self._apply_whole is None:
            super()._check_handlers()

    @contextmanager
    def _connected_target(self) -> Iterator[Connection]:
        if self._target is None:
            raise InvalidArgument(
                f"consumer {self.name} applies its batches in the database of the queue",
                "It needs neither rewind nor reset: the batch is applied and acked in one "
                "transaction.",
            )
        with connect(self._target) as connection:
            with translated():
                self._completed.prepare(connection)
            yield connection

    def _connect(self) -> None:
        if self._target is None:
            with connect(self._url) as own, translated():
                self._check_target(own)
            return
        connection = connect(self._target)
        try:
            with translated():
                self._completed.prepare(connection)
                self._check_target(connection)
        except BaseException:
            connection.close()
            raise
        self._target_connection = connection

    def _disconnect(self) -> None:
        if self._target_connection is not None:
            self._target_connection.close()
            self._target_connection = None

    def _handle(self, client: Client, claim: Batch, dispatch: Dispatch, messages: Pages) -> None:
        name = self._name_of(claim)

        def apply(connection: Connection) -> None:
            with _open_throughout(connection, name):
                if self._apply_whole is None:
                    for page in messages:
                        dispatch.in_turn(page, connection)
                else:
                    self._apply_whole([*chain(*messages)], connection)

        try:
            with translated(), self._refusing(name):
                if self._target is None:
                    with client.transaction() as connection:
                        apply(connection)
                        self._finish(claim, messages.failed)
                    return
                if self._target_connection is None:
                    self._connect()
                self._apply_once(client, claim, messages.failed, apply)
            # Only now: the target has the batch, or had it before.
            self._finish(claim, messages.failed)
        except BaseException:
            self._disconnect()
            raise

    def _apply_once(self, client: Client, claim: Batch, failed: Failed, apply: Check) -> None:
        """Applies a batch in a transaction of the target, unless the target has it."""
        connection = self._target_connection
        assert connection is not None
        batch = Span.of(client, claim.queue, claim.lease)
        self._completed.check_events(connection)
        with connection.transaction():
            applied = self._completed.lock(connection, batch, claim.renew)
            if applied:
                # What failed was not acked yet, so it is written with this ack.
                failed.load(applied.failed)
                return
            apply(connection)
            self._completed.record(connection, batch, failed.dump())

    @contextmanager
    def _refusing(self, name: str) -> Iterator[None]:
        """Raises psycopg errors that do not pass as `TargetRefused`."""
        try:
            yield
        except (psycopg.Error, DatabaseError) as error:
            # The COMMIT in the database of the queue is the client's.
            cause = error if isinstance(error, psycopg.Error) else error.__cause__
            if not (isinstance(cause, psycopg.Error) and is_refusal(cause)):
                raise
            raise TargetRefused(
                f"{name} was refused by database {self._target_name()}: "
                f"{cause.diag.message_primary or cause}; nothing of it was applied or acked",
                cause.diag.message_hint or "Correct the cause, and run the consumer again.",
            ) from cause

    def _target_name(self) -> str:
        if self._target_connection is None:
            return "of the queue"
        return self._target_connection.info.dbname


@contextmanager
def _open_throughout(connection: Connection, name: str) -> Iterator[None]:
    """Refuses a block that ends the transaction around it."""
    ended = TransactionEnded(
        f"the transaction in which {name} is applied was ended; the batch is not acked, and what "
        "was written may be rolled back or committed",
        "Remove COMMIT, ROLLBACK and close(); raise an error to roll back all, or use `with "
        "connection.transaction():` around a part.",
    )
    try:
        yield
    except psycopg.Rollback as error:
        raise ended from error
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise ended
