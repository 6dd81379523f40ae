"""Runs the handlers of one batch: in turn, in threads, or as tasks.

With several workers, events of one key are handled one after another, in order.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from ..errors import can_tell, told
from .delivery import Delivery, Failed
from .handlers import Handler, Handlers
from .telemetry import is_observed, observed
from .threads import in_daemon_thread
from .transactional import call_in_savepoint, check_transaction

logger = logging.getLogger("pgque.consumer")

_AT_ONCE = timedelta(0)


class Dispatch:
    """Handles the messages of one batch.

    Args:
        handlers: by type.
        consumer: the consumer's name.
        failed: notes which messages failed.
        check: raises if the batch is no longer the consumer's.
        max_time: how long the batch may take.
        pauses: whether later messages of a key wait for one that failed.
        checks_constraints: whether deferred constraints are checked after each transactional
            handler.
    """

    def __init__(
        self,
        handlers: Handlers,
        consumer: str,
        failed: Failed,
        check: Callable[[], None],
        max_time: timedelta | None = None,
        pauses: bool = False,
        checks_constraints: bool = False,
    ) -> None:
        self._handlers = handlers
        self._consumer = consumer
        self._failed = failed
        self._check = check
        self._max_time = max_time
        self._pauses = pauses
        self._checks_constraints = checks_constraints
        self._paused: set[str] = set()
        self._running: set[int] = set()
        self._in_threads: set[int] = set()
        self._done: set[int] = set()
        self._is_over = False
        self._is_observed = is_observed()
        self._error: BaseException | None = None

    def in_turn(self, messages: Sequence[Delivery], connection: Any = None) -> None:
        """Handles the messages in order; transactional handlers on the given connection."""
        for message in messages:
            self._check()
            handler = self._admit(message)
            if handler is not None:
                self._handle(handler, message, connection)

    def in_threads(self, messages: Sequence[Delivery], count: int) -> bool:
        """Handles the messages in threads; returns whether all handlers returned in time."""
        lanes: SimpleQueue[Sequence[Delivery] | None] = SimpleQueue()
        for lane in [*_lanes(messages), *[None] * count]:
            lanes.put(lane)
        self._is_over = False

        def work() -> None:
            try:
                for lane in iter(lanes.get, None):
                    for message in lane:
                        if self._is_over:
                            return
                        self._check()
                        handler = self._admit(message)
                        if handler is not None:
                            self._handle_in_time(handler, message)
            except BaseException as error:
                self._error, self._is_over = error, True

        # Daemons, because a handler that hangs must not keep the process from ending.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        ends_at = self._ends_at()
        for thread in threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - time.monotonic()))
        is_late = any(thread.is_alive() for thread in threads)
        self._is_over = True
        if self._error is not None:
            raise self._error
        running = set(self._running)
        if is_late:
            self._give_up(messages, running)
        return not running

    async def in_tasks(self, messages: Sequence[Delivery], count: int) -> bool:
        """Handles the messages in tasks, and cancels those that are late.

        Plain handlers run in threads, which cannot be cancelled.

        Returns:
            Whether all plain handlers returned in time.
        """
        lanes = iter(_lanes(messages))

        async def work() -> None:
            for lane in lanes:
                for message in lane:
                    self._check()
                    await self._handle_async(message)

        tasks = [asyncio.create_task(work()) for _ in range(count)]
        seconds = None if self._max_time is None else self._max_time.total_seconds()
        done, late = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        running = set(self._running)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()
        if late:
            self._give_up(messages, running)
        return not self._in_threads

    def _admit(self, message: Delivery) -> Handler | None:
        """Returns the handler when its rate allows; None if the message waits for another one."""
        if self._paused and self._waits(message):
            return None
        handler = self._handlers.find(message)
        if handler.limiter is not None:
            handler.limiter.try_acquire(message.type or "")
        return handler

    def _handle_in_time(self, handler: Handler, message: Delivery) -> None:
        """Handles a message unless the time is over, and notes that its handler runs."""
        self._running.add(message.msg_id)
        try:
            # The time may have ended while the message waited for its rate.
            if not self._is_over:
                self._handle(handler, message)
        finally:
            self._running.discard(message.msg_id)

    def _handle(self, handler: Handler, message: Delivery, connection: Any = None) -> None:
        result = None
        try:
            if handler.transactional:
                with observed(message, self._consumer, self._failed):
                    result = call_in_savepoint(
                        handler, message, connection, self._failed, self._checks_constraints
                    )
            elif self._is_observed:
                with observed(message, self._consumer, self._failed):
                    result = handler.function(message)
            else:
                result = handler.function(message)
        except Exception as error:
            if handler.transactional:
                check_transaction(handler, connection)
            self._note_failure(message, error)
        if result is not None:
            handler.refuse(result)
        self._note_done(message)

    async def _handle_async(self, message: Delivery) -> None:
        handler = self._handlers.find(message)
        if self._paused and self._waits(message):
            return
        if handler.limiter is not None:
            await handler.limiter.try_acquire_async(message.type or "")
        self._running.add(message.msg_id)
        result = None
        try:
            with observed(message, self._consumer, self._failed):
                if handler.is_async:
                    result = await handler.function(message)
                else:
                    result = await in_daemon_thread(self._call_plain, handler, message)
                    if inspect.isawaitable(result):
                        result = await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task was cancelled, but one that the handler awaited.
            self._note_failure(message, error)
        except Exception as error:
            self._note_failure(message, error)
        finally:
            self._running.discard(message.msg_id)
        if result is not None:
            handler.refuse(result)
        self._note_done(message)

    def _call_plain(self, handler: Handler, message: Delivery) -> object:
        """Calls a plain handler, and notes that its thread runs as long as it does."""
        self._in_threads.add(message.msg_id)
        try:
            return handler.function(message)
        finally:
            self._in_threads.discard(message.msg_id)

    def _note_failure(self, message: Delivery, error: BaseException) -> None:
        if self._failed.is_dead(message):
            fate = "becomes a dead letter"
        else:
            self._failed.nack(message, None, told(error))
            after = self._failed.retry_after
            fate = (
                f"is delivered again after {after}, or becomes a dead letter without retries left"
            )
        logger.error(
            "event %s of %s/%s failed and %s",
            message.msg_id,
            message.queue,
            self._consumer,
            fate if can_tell(error) else f"{fate}: {told(error)}",
            # A formatter of logs that asks such an error for its text would end the consumer.
            exc_info=error if can_tell(error) else None,
            extra=_fields(message, self._consumer),
        )

    def _note_done(self, message: Delivery) -> None:
        if self._max_time is not None:
            self._done.add(message.msg_id)
        if self._pauses and message.key is not None and message in self._failed:
            self._paused.add(message.key)

    def _waits(self, message: Delivery) -> bool:
        """Whether the message waits for one of its key that failed, and is delivered after it."""
        return message.key is not None and message.key in self._paused

    def _ends_at(self) -> float | None:
        if self._max_time is None:
            return None
        return time.monotonic() + self._max_time.total_seconds()

    def _give_up(self, messages: Sequence[Delivery], running: set[int]) -> None:
        """Has the messages delivered again that were not handled in time."""
        for message in messages:
            if message.msg_id in running:
                reason = f"the handler did not return within {self._max_time}"
                self._failed.nack(message, None, reason)
            elif message.msg_id not in self._done and not self._waits(message):
                reason = f"not handled, because the batch took longer than {self._max_time}"
                self._failed.nack(message, _AT_ONCE, reason)
        logger.error(
            "handlers of %s took longer than %s; events that were not handled are delivered again",
            self._consumer,
            self._max_time,
        )


def _lanes(messages: Sequence[Delivery]) -> list[list[Delivery]]:
    """Returns the messages in lists that are independent: by key, or alone without a key."""
    by_key: dict[str, list[Delivery]] = {}
    lanes: list[list[Delivery]] = []
    for message in messages:
        if message.key is None:
            lanes.append([message])
        elif message.key in by_key:
            by_key[message.key].append(message)
        else:
            lanes.append(by_key.setdefault(message.key, [message]))
    return lanes


def _fields(message: Delivery, consumer: str) -> dict[str, object]:
    """Returns the fields of a structured log record."""
    return {
        "queue": message.queue,
        "consumer": consumer,
        "msg_id": message.msg_id,
        "event_type": message.type,
        "retry_count": message.retry_count,
    }
