"""The consumer: claims batches, passes them to handlers or to `apply`, and acks them.

Changes are written in the ack's transaction, or in another database (`target_database.py`).
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from typing import TypeVar

from psycopg import sql

from ..batch import DEFAULT_TTL, NO_LIMITS, Batch, batch_events
from ..client import Client
from ..connection import connect
from ..errors import (
    BatchLeased,
    BatchNotOpen,
    CallRefused,
    DatabaseError,
    InvalidArgument,
    LeaseLost,
    PgqueError,
    is_refusal,
    passes,
    translated,
)
from ..holder import Holder, consumer_states
from ..lease import LeaseKeeper
from ..models import Limits
from ..ranges import Position, check_interval
from ..registrations import check_consumer
from ..rights import Connection
from ..running import keep_running, stopping_on_signals
from .delivery import Delivery, FailedMessages, Pages
from .dispatch import Dispatch
from .handlers import Function, Handlers, check_types
from .target_database import TargetDatabase, open_throughout, refusing

logger = logging.getLogger("pgque.consumer")

F = TypeVar("F", bound=Function)

# Applies all events of a batch on a connection.
Apply = Callable[[Sequence[Delivery], Connection], object]

# After these errors, too, the batch stays open and is claimed again on a new connection.
_PASSING = (DatabaseError, LeaseLost, BatchNotOpen)
_PAGE = 10_000
# Each wait for NOTIFY is this short, so that `stop` takes effect soon.
_STEP = 0.5


class Consumer:
    """Runs handlers on the events of a queue.

    A batch is acked when all its events are handled. If a handler raises, its event is delivered
    again after `retry_after`, and becomes a dead letter once its retries run out. Events are
    handled at least once; with transactional handlers, what they write counts exactly once.

    Args:
        url: the database.
        queue: the queue's name.
        name: the consumer's name.
        start_at: where the consumer starts if it is not registered, such as `latest`. By default
            it must be registered.
        target: another database. Handlers get a connection to it, and each batch is applied there
            exactly once (docs/movers.md). Consumers of different databases that apply to one target
            need different names.
        apply: applies a batch as a whole, instead of handlers for its events. It gets the messages,
            in order, and a connection, in a transaction; `nack` and `dead_letter` of a message take
            effect with the ack. If it raises, the batch is rolled back and is not acked.
        subconsumer: a name for this process if several share the consumer's batches.
        retry_after: how long an event that failed waits for its next delivery.
        limits: which batches to open.
        lease: how long other processes wait for a batch if this process is killed.
        poll_interval: the longest wait between two checks for batches. NOTIFY ends it, except
            behind a pooler of transactions.

    Example:
        >>> consumer = Consumer(url, "orders", "mailer", start_at="earliest")
        >>> @consumer.on("order.created")
        ... def welcome(message):
        ...     print(message.json()["email"])
        ...     consumer.stop()  # after this batch
        >>> client.send("orders", {"email": "ada@example.com"}, type="order.created")
        1
        >>> consumer.run()
        ada@example.com
    """

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        target: str | None = None,
        apply: Apply | None = None,
        start_at: Position | None = None,
        subconsumer: str | None = None,
        retry_after: timedelta = timedelta(minutes=1),
        limits: Limits = NO_LIMITS,
        lease: timedelta = DEFAULT_TTL,
        poll_interval: timedelta = timedelta(seconds=5),
    ) -> None:
        for option, value in (("lease", lease), ("poll_interval", poll_interval)):
            check_interval(option, value)
        check_interval("retry_after", retry_after, is_zero_allowed=True)
        if not isinstance(queue, str):
            raise InvalidArgument(
                f"a consumer of {queue!r}", "Name one queue, and start one consumer for each queue."
            )
        if target is not None and subconsumer is not None:
            raise InvalidArgument(
                "a consumer with a target has no subconsumers",
                "Its batches are applied in order, by one process at a time.",
            )
        self.name = name
        self.queue = queue
        self._url = url
        self._target = None if target is None else TargetDatabase(target, queue, name)
        self._apply = apply
        self._holder = Holder(queue, name, subconsumer)
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._start_at = start_at
        self._retry_after = retry_after
        self._limits = limits
        self._lease = lease
        self._poll_interval = poll_interval.total_seconds()
        self._handlers = Handlers()
        self._stopped = threading.Event()
        self._leased: str | None = None

    def on(self, *types: str, transactional: bool | None = None) -> Callable[[F], F]:
        """Registers the decorated function as handler of the given types, or of all other types.

        Args:
            *types: the types.
            transactional: calls the handler with the message and a connection; its writes on that
                connection commit together with the ack. If the consumer has a target, all handlers
                get a connection to the target; other handlers get one on request.
        """
        check_types(types)
        if self._apply or (self._target and transactional is False):
            raise InvalidArgument(
                f"consumer {self.name} applies whole batches, without handlers"
                if self._apply
                else "a handler of a consumer with a target gets a connection to the target",
                "Use a consumer without apply for handlers, and one without a target for those "
                "without a connection.",
            )
        gets_connection = bool(self._target or transactional)

        def decorate(function: F) -> F:
            self._handlers.add(types, function, gets_connection)
            return function

        return decorate

    def stop(self) -> None:
        """Makes `run` return after the current batch. Safe in threads.

        If it is not running, the next `run` returns at once.
        """
        self._stopped.set()

    def run(self) -> None:
        """Handles batches until `stop`, SIGTERM or SIGINT; a second signal ends it at once.

        Errors that go away by themselves or that an administrator fixes, such as a server that is
        down, a lock or a missing right, are retried forever, with waits of up to 30 seconds.

        Raises:
            HandlerMissing: if a batch has events of a type without a handler.
            TransactionEnded: if a transactional handler committed or rolled back.
            TargetOutOfStep: if a batch does not follow the last one that the target applied.
            TargetRefused: if the target refuses what is applied, or the queue's database does.
            InvalidArgument: if a handler returned a coroutine or a generator, which would not run.
            CallRefused: if the consumer belongs to an asset of Dagster.
            PgqueError: for errors that a retry cannot fix, such as a missing schema or consumer; at
                the start also for a missing role, and if a database cannot be reached.
        """
        self._check_handlers()
        try:
            with stopping_on_signals(self.stop):
                if self._target is not None:
                    self._target.connect()
                with Client(self._url) as client:
                    self._register(client)
                keep_running(self._batches, self._stopped, _passes, self._log_error)
        finally:
            if self._target is not None:
                self._target.disconnect()
            # So that it can run again. A `stop` before the start ends the next `run`.
            self._stopped.clear()

    def rewind(self) -> None:
        """Moves the consumer, forward or back, to the target's last batch.

        For a consumer that is out of step with its target (`TargetOutOfStep`), while it is not
        running. Events in between are delivered again, or skipped because the target has them.

        Raises:
            TicksUnavailable: if the queue no longer has the tick at which the target ends.
            InvalidArgument: if that tick is no longer retained.
            BatchLeased: if a process runs the consumer.
        """
        with Client(self._url) as client:
            self._needed_target().rewind(client)

    def reset(self) -> None:
        """Makes the target forget its last batch, so that it accepts the consumer's next batch.

        Events that the target already has are applied again, and events that it lacks stay
        missing, unless you move the consumer with `seek`.
        """
        self._needed_target().reset()

    def _needed_target(self) -> TargetDatabase:
        if self._target is None:
            raise InvalidArgument(
                f"consumer {self.name} applies its batches in the database of the queue",
                "It needs neither rewind nor reset: each batch is applied and acked in one "
                "transaction.",
            )
        return self._target

    def _check_handlers(self) -> None:
        if self._apply is None and not list(self._handlers):
            raise InvalidArgument(
                f"consumer {self.name} has no handler",
                'Decorate a function with @consumer.on("type"), or @consumer.on() for all types.',
            )

    def _register(self, client: Client) -> None:
        (state, *_) = client.run(consumer_states([(self.queue, self.name)], NO_LIMITS))
        if state.belongs_to.assets:
            raise CallRefused(
                f"consumer {self.name} on queue {self.queue} belongs to {state.belongs_to}",
                "Both would get some of the batches. Give this program another consumer; or remove "
                "the asset, and move the consumer with `pgque assign QUEUE CONSUMER PROGRAM`.",
            )
        if self._start_at is not None:
            client.register_consumer(self.queue, self.name, start_at=self._start_at)
        else:
            client.run(check_consumer(self.queue, self.name))
        if self._holder.subconsumer is not None:
            client.run(self._holder.register_subconsumer())

    def _batches(self) -> Iterator[None]:
        """Handles batches until `stop`; yields after each batch and after each wait."""
        with Client(self._url) as client, self._listening() as connection:
            while not self._stopped.is_set():
                batch = self._claim(client)
                if batch is not None:
                    self._process(client, batch)
                else:
                    self._wait(connection)
                yield

    def _claim(self, client: Client) -> Batch | None:
        try:
            return self._holder.claim(
                client, owner=self._owner, ttl=self._lease, limits=self._limits
            )
        except BatchLeased as error:
            # Logged once; this process takes over if the other one is killed.
            if self._leased != str(error):
                self._leased = str(error)
                logger.info(self._leased, extra=self._fields())
            return None

    @contextmanager
    def _listening(self) -> Iterator[Connection]:
        """Connects, and listens for a NOTIFY at each tick of the queue."""
        with connect(self._url) as connection:
            with translated():
                channel = sql.Identifier(f"pgque_{self.queue}")
                connection.execute(sql.SQL("listen {}").format(channel))
            yield connection

    def _wait(self, connection: Connection) -> None:
        """Waits for a tick. Behind a pooler of transactions, it takes the whole poll interval."""
        ends_at = time.monotonic() + self._poll_interval
        while not self._stopped.is_set() and (left := ends_at - time.monotonic()) > 0:
            with translated():
                ticks = list(connection.notifies(timeout=min(_STEP, left), stop_after=1))
            if ticks:
                return

    def _process(self, client: Client, batch: Batch, checks_constraints: bool = False) -> None:
        failed = FailedMessages(self._retry_after)
        try:
            rows = client.pages(batch_events(batch.batch_id), _PAGE)
            messages = Pages(rows, self.queue, failed)
            self._handlers.check(messages.types, self._name_of(batch))
            keeper = LeaseKeeper(self._url, batch.lease, self._lease)
            dispatch = Dispatch(self._handlers, self.name, failed, keeper.check, checks_constraints)
            with keeper:
                self._handle(client, batch, dispatch, messages)
        except BaseException as error:
            has_savepoints = any(handler.transactional for handler in self._handlers)
            if has_savepoints and not checks_constraints and is_refusal(error.__cause__):
                # An error at COMMIT names no event, so it is searched for, with a check per event.
                self._process(client, batch, checks_constraints=True)
                return
            with suppress(PgqueError):
                batch.release()
            raise

    def _handle(self, client: Client, batch: Batch, dispatch: Dispatch, messages: Pages) -> None:
        """Handles and finishes the messages."""
        name, failed = self._name_of(batch), messages.failed

        def apply(connection: Connection) -> None:
            with open_throughout(connection, name):
                if self._apply is not None:
                    self._apply([*chain(*messages)], connection)
                    return
                for page in messages:
                    dispatch.in_turn(page, connection)

        if self._target is not None:
            with translated(), refusing(name):
                self._target.apply(client, batch, failed, apply)
            # Not earlier: now the target has the batch, from this attempt or an earlier one.
            self._finish(batch, failed)
        elif self._apply is not None:
            with translated(), refusing(name):
                self._apply_and_finish(client, batch, failed, apply)
        elif any(handler.transactional for handler in self._handlers.found(messages.types)):
            self._apply_and_finish(client, batch, failed, apply)
        else:
            for page in messages:
                dispatch.in_turn(page)
            self._finish(batch, failed)

    def _apply_and_finish(
        self,
        client: Client,
        batch: Batch,
        failed: FailedMessages,
        apply: Callable[[Connection], object],
    ) -> None:
        """Applies and acks a batch in one transaction."""
        with client.transaction() as connection:
            apply(connection)
            self._finish(batch, failed)

    def _finish(self, batch: Batch, failed: FailedMessages) -> None:
        """Acks the batch and records the failed messages, in one transaction."""
        # A new object: if the transaction was refused, other events may fail at the next try.
        acked = Batch(batch.session, batch.queue, batch.consumer, batch.lease, self._lease)
        failed.write_to(acked)
        acked.ack()

    def _name_of(self, batch: Batch) -> str:
        return f"batch {batch.batch_id} of {self.queue}/{self.name}"

    def _log_error(self, error: Exception, what_follows: str) -> None:
        logger.warning("%s %s", error, what_follows, extra=self._fields())

    def _fields(self) -> dict[str, object]:
        """Returns the fields of a structured log record."""
        return {"queue": self.queue, "consumer": self.name}


def _passes(error: Exception) -> bool:
    return isinstance(error, _PASSING) or passes(error)
