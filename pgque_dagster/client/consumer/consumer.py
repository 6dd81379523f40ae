"""The consumer: claims batches, runs handlers on their events, and acks."""

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from ..batch import DEFAULT_TTL, NO_LIMITS
from ..client import Client
from ..errors import (
    BatchLeased,
    BatchNotOpen,
    InvalidArgument,
    LeaseLost,
    PgqueError,
)
from ..lease import Renewals
from ..models import HealthCheck, Limits
from ..partitions import OnFailure
from ..ranges import Position, check_interval
from ..running import PASSING, keep_running, stopping_on_signals, stopping_on_unhandled_sigterm
from .delivery import Pages
from .dispatch import Dispatch
from .handlers import Function, Handlers, check_types
from .health import ConsumerHealth, State
from .sources import BatchSource, SlotSource, Source, Work
from .transactional import is_refusal
from .wakeup import listening

logger = logging.getLogger("pgque.consumer")

F = TypeVar("F", bound=Function)

# Errors that pass: the batch stays as it is, and is claimed again on a new connection.
_PASSING = (*PASSING, LeaseLost, BatchNotOpen)


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
        subconsumer: a name for this process if several share the consumer's batches.
        slots: the number of slots if the consumer is partitioned.
        on_failure: whether later events of a key wait for one that failed; with `slots` only.
        concurrency: how many events are handled at the same time if a handler is a coroutine
            function. Events of one key are handled in order.
        retry_after: how long an event that failed waits for its next delivery.
        limits: which batches to open.
        lease: how long other processes wait for a batch if this one is killed.
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
        start_at: Position | None = None,
        subconsumer: str | None = None,
        slots: int | None = None,
        on_failure: OnFailure = "skip",
        concurrency: int = 1,
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
                f"a consumer of {queue!r}", "Name one queue. Start a consumer for each of several."
            )
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidArgument(f"a concurrency of {concurrency!r}", "Choose 1 or more.")
        if slots is not None and (subconsumer is not None or limits != NO_LIMITS):
            raise InvalidArgument(
                "a partitioned consumer has neither subconsumers nor limits",
                "Leave out slots, or the others.",
            )
        if slots is None and on_failure != "skip":
            raise InvalidArgument(
                f"on_failure={on_failure!r} is for partitioned consumers", "Pass slots as well."
            )
        self.name = name
        self.queue = queue
        self._url = url
        self._start_at = start_at
        self._concurrency = concurrency
        self._retry_after = retry_after
        self._lease = lease
        self._poll_interval = poll_interval.total_seconds()
        self._handlers = Handlers()
        self._stopped = threading.Event()
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leased: set[str] = set()
        self._error: str | None = None
        self._enter("stopped")
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._source: Source = (
            BatchSource(queue, name, subconsumer, owner, lease, limits)
            if slots is None
            else SlotSource(queue, name, slots, on_failure, owner, lease)
        )

    def on(self, *types: str, transactional: bool = False) -> Callable[[F], F]:
        """Decorates the handler of some types of events, or without a type that of all others.

        Args:
            *types: the types.
            transactional: calls the handler with the message and a connection, on which what it
                writes commits together with the ack of the batch.
        """
        check_types(types)

        def decorate(function: F) -> F:
            self._handlers.add(types, function, transactional)
            return function

        return decorate

    def stop(self) -> None:
        """Makes `run` return after the current batch. Safe in threads and signal handlers.

        If it does not run, the next `run` returns at once.
        """
        self._stopped.set()

    def run(self) -> None:
        """Handles batches until `stop`, SIGTERM or SIGINT; a second signal ends it at once.

        If the connection breaks later, it reconnects after a wait that grows up to 30 seconds.

        Raises:
            HandlerMissing: if a batch has events of a type without a handler.
            TransactionEnded: if a transactional handler committed or rolled back.
            InvalidArgument: if a handler returned a coroutine or a generator, which nothing runs.
            PgqueError: for errors that do not pass, such as a missing schema, role or consumer, and
                if the database cannot be reached at the start.
        """
        self._check_handlers()
        try:
            with stopping_on_signals(self.stop):
                with Client(self._url) as client:
                    self._source.register(client, self._start_at)
                    self._log_left_batch(client)
                keep_running(self._batches, self._stopped, _PASSING, self._note_error)
        finally:
            # So that it can run again. A `stop` before the start ends the next `run`.
            self._stopped.clear()
            self._enter("stopped")
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    async def run_async(self) -> None:
        """Does what `run` does, with coroutine handlers in the present event loop.

        Cancelling it ends it after the current batch, as `stop` does. So does SIGTERM, unless the
        application handles it.
        """
        self._loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(asyncio.to_thread(self.run))
        try:
            with stopping_on_unhandled_sigterm(self.stop):
                await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise
        finally:
            self._loop = None

    def health(self) -> ConsumerHealth:
        """Returns the health of the consumer and of its queue. Any thread may call it."""
        checks: list[HealthCheck] = []
        error = self._error
        try:
            with Client(self._url) as client:
                checks = [check for check in client.health() if check.queue in (None, self.queue)]
        except PgqueError as caught:
            error = error or str(caught)
        state, batch_id, since = self._state
        return ConsumerHealth(
            "reconnecting" if error and state != "stopped" else state,
            batch_id,
            since,
            error,
            checks,
        )

    def _check_handlers(self) -> None:
        handlers = list(self._handlers)
        if not handlers:
            raise InvalidArgument(
                f"consumer {self.name} has no handler",
                'Decorate a function with @consumer.on("type"), or @consumer.on() for all types.',
            )
        is_transactional = any(handler.transactional for handler in handlers)
        is_async = any(handler.is_async for handler in handlers)
        processes = "start several processes with a subconsumer or slots"
        if is_transactional and (self._concurrency > 1 or is_async):
            raise InvalidArgument(
                "transactional handlers use the consumer's connection, one after another",
                f"Leave out concurrency and coroutine functions, and {processes} to handle more at "
                "the same time.",
            )
        if self._concurrency > 1 and not is_async:
            raise InvalidArgument(
                f"a concurrency of {self._concurrency} without a handler that is a coroutine "
                "function",
                f"Write the handler as a coroutine function (async def), or {processes}.",
            )

    def _batches(self) -> Iterator[None]:
        """Handles batches until `stop`; yields after each, and after each wait for one."""
        with (
            Client(self._url) as client,
            listening(self._url, self.queue) as wakeup,
            Renewals(self._lease) as renewals,
        ):
            while not self._stopped.is_set():
                work = self._claim(client)
                if work is not None:
                    self._enter("working", work.batch_id)
                    try:
                        self._process(client, work, renewals)
                    finally:
                        self._enter("idle")
                else:
                    if self._state[0] != "idle":
                        self._enter("idle")
                    self._error = None
                    wakeup.wait(self._poll_interval, self._stopped)
                self._error = None
                yield

    def _claim(self, client: Client) -> Work | None:
        try:
            return self._source.claim(client)
        except BatchLeased as error:
            self._log_leased(str(error))
            return None

    def _process(
        self, client: Client, work: Work, renewals: Renewals, checks_constraints: bool = False
    ) -> None:
        failed = work.failed(self._retry_after)
        try:
            messages = work.messages(failed)
            self._handlers.check(messages.types, self._name_of(work))
            keeper = work.keeper()
            with renewals.of(keeper):
                dispatch = Dispatch(
                    self._handlers,
                    self.name,
                    failed,
                    keeper.check,
                    work.pauses,
                    checks_constraints,
                )
                self._handle(client, work, dispatch, messages)
        except BaseException as error:
            has_savepoints = any(handler.transactional for handler in self._handlers)
            if has_savepoints and not checks_constraints and is_refusal(error.__cause__):
                # A COMMIT names no event: it is looked for, at a cost for each event.
                self._process(client, work, renewals, checks_constraints=True)
                return
            with suppress(PgqueError):
                work.release()
            raise

    def _handle(self, client: Client, work: Work, dispatch: Dispatch, messages: Pages) -> None:
        """Handles and finishes the messages."""
        found = self._handlers.found(messages.types)
        if any(handler.transactional for handler in found):
            with client.transaction() as connection:
                for page in messages:
                    dispatch.in_turn(page, connection)
                work.finish(messages.failed)
            return
        for page in messages:
            if any(handler.is_async for handler in found):
                self._run_coroutine(dispatch.in_tasks(page, self._concurrency))
            else:
                dispatch.in_turn(page)
        work.finish(messages.failed)

    def _name_of(self, work: Work) -> str:
        return f"batch {work.batch_id} of {work.queue}/{self.name}"

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
            return
        if self._runner is None:
            self._runner = asyncio.Runner()
        self._runner.run(coroutine)

    def _enter(self, state: State, batch_id: int | None = None) -> None:
        self._state = (state, batch_id, datetime.now(UTC))

    def _note_error(self, error: Exception, what_follows: str) -> None:
        self._error = str(error)
        logger.warning("%s %s", error, what_follows, extra=self._fields())

    def _log_leased(self, text: str) -> None:
        """Logs once that another process has the batch; this one takes over if it is killed."""
        if text not in self._leased:
            self._leased = {text}
            logger.info(text, extra=self._fields())

    def _log_left_batch(self, client: Client) -> None:
        """Says which batch a process left that was killed."""
        info = None
        with suppress(PgqueError):
            info = client.lease_info(self.queue, self.name)
        if info is not None and info.owner is not None:
            logger.warning(
                "batch %s of %s/%s was claimed by %s and not acked: its events are delivered again",
                info.batch_id,
                self.queue,
                self.name,
                info.owner,
                extra=self._fields(),
            )

    def _fields(self) -> dict[str, object]:
        """Returns the fields of a structured log record."""
        return {"queue": self.queue, "consumer": self.name}
