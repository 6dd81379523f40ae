"""Runs the handlers of one batch: in turn, or as tasks.

Events of one key are handled one after another, in order.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import can_tell, told
from .delivery import Delivery, Failed
from .handlers import Handler, Handlers
from .telemetry import is_observed, observed
from .threads import in_daemon_thread
from .transactional import call_in_savepoint, check_transaction

logger = logging.getLogger("pgque.consumer")


class Dispatch:
    """Handles the messages of one batch.

    Args:
        handlers: by type.
        consumer: the consumer's name.
        failed: notes which messages failed.
        check: raises if the batch is no longer the consumer's.
        checks_constraints: whether deferred constraints are checked after each transactional
            handler.
    """

    def __init__(
        self,
        handlers: Handlers,
        consumer: str,
        failed: Failed,
        check: Callable[[], None],
        checks_constraints: bool = False,
    ) -> None:
        self._handlers = handlers
        self._consumer = consumer
        self._failed = failed
        self._check = check
        self._checks_constraints = checks_constraints
        self._is_observed = is_observed()

    def in_turn(self, messages: Sequence[Delivery], connection: Any = None) -> None:
        """Handles the messages in order; transactional handlers on the given connection."""
        for message in messages:
            self._check()
            self._handle(self._handlers.find(message), message, connection)

    async def in_tasks(self, messages: Sequence[Delivery], count: int) -> None:
        """Handles the messages in tasks, and plain handlers in threads, which do not block them."""
        lanes = iter(_lanes(messages))

        async def work() -> None:
            for lane in lanes:
                for message in lane:
                    self._check()
                    await self._handle_async(message)

        tasks = [asyncio.create_task(work()) for _ in range(count)]
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in done:
            task.result()

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

    async def _handle_async(self, message: Delivery) -> None:
        handler = self._handlers.find(message)
        result = None
        try:
            with observed(message, self._consumer, self._failed):
                if handler.is_async:
                    result = await handler.function(message)
                else:
                    result = await in_daemon_thread(handler.function, message)
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
        if result is not None:
            handler.refuse(result)

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
