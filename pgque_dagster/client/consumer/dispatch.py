"""Calls the handlers for the messages of one batch, in order.

A transactional handler runs in a savepoint of the transaction that acks the batch. If it fails with
a temporary error, such as a lock or a missing right, the whole batch is retried later.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ..errors import ConnectionFailed, InvalidArgument, TransactionEnded, can_tell, passes, told
from .delivery import Delivery, FailedMessages
from .handlers import Handler, Handlers

logger = logging.getLogger("pgque.consumer")

# Constraints that start as immediate stay immediate: a handler may rely on their errors.
CHECK_CONSTRAINTS = """
do $$ begin
    set constraints all immediate;
    execute coalesce(
        (select 'set constraints '
                || string_agg(distinct format('%I.%I', n.nspname, c.conname), ',') || ' deferred'
         from pg_catalog.pg_constraint c join pg_catalog.pg_namespace n on n.oid = c.connamespace
         where c.condeferred and c.conparentid = 0
           and pg_catalog.has_schema_privilege(n.oid, 'usage')), 'select');
end $$"""


class Dispatch:
    """Handles the messages of one batch.

    Args:
        check: raises if the batch is no longer the consumer's.
        checks_constraints: whether deferred constraints are checked after each transactional
            handler.
    """

    def __init__(
        self,
        handlers: Handlers,
        consumer: str,
        failed: FailedMessages,
        check: Callable[[], None],
        checks_constraints: bool = False,
    ) -> None:
        self._handlers = handlers
        self._consumer = consumer
        self._failed = failed
        self._check = check
        self._checks_constraints = checks_constraints

    def in_turn(self, messages: Sequence[Delivery], connection: Any = None) -> None:
        """Handles the messages in order; transactional handlers on the given connection."""
        for message in messages:
            self._check()
            self._handle(self._handlers.find(message), message, connection)

    def _handle(self, handler: Handler, message: Delivery, connection: Any) -> None:
        result = None
        try:
            if handler.transactional:
                result = self._call_in_savepoint(handler, message, connection)
            else:
                result = handler.function(message)
        except Exception as error:
            if handler.transactional:
                _check_transaction(handler, connection)
                # It is not the message's fault, unless it takes too long; nothing is written yet.
                if passes(error) and not isinstance(error, psycopg.errors.QueryCanceled):
                    raise
            self._note_failure(message, error)
        if result is not None:
            handler.refuse(result)

    def _call_in_savepoint(self, handler: Handler, message: Delivery, connection: Any) -> object:
        """Calls the handler, checks deferred constraints, and rolls back if the message failed.

        Raises:
            InvalidArgument: if the handler went on after an SQL error, because the transaction
                would fail for all later messages.
        """
        result = None
        with connection.transaction():
            result = handler.function(message, connection)
            if connection.info.transaction_status == TransactionStatus.INERROR:
                raise InvalidArgument(
                    "the handler went on after an SQL error",
                    "Use `with connection.transaction():` around the statement.",
                )
            if message in self._failed:
                # It is delivered again or set aside, so what the handler wrote must not stay.
                raise psycopg.Rollback
            if self._checks_constraints:
                connection.execute(CHECK_CONSTRAINTS)
        return result

    def _note_failure(self, message: Delivery, error: Exception) -> None:
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
            # If a log formatter asked such an error for its text, the consumer would end.
            exc_info=error if can_tell(error) else None,
            extra={
                "queue": message.queue,
                "consumer": self._consumer,
                "msg_id": message.msg_id,
                "event_type": message.type,
                "retry_count": message.retry_count,
            },
        )


def _check_transaction(handler: Handler, connection: Any) -> None:
    """Checks after an error that the transaction is still open.

    psycopg cannot leave the savepoint if the handler ended the transaction. Then no transaction
    is open, or it has failed.

    Raises:
        ConnectionFailed: if the connection broke.
        TransactionEnded: if the handler ended the transaction.
    """
    if connection.broken:
        raise ConnectionFailed("the connection broke while a handler used it")
    if connection.info.transaction_status != TransactionStatus.INTRANS:
        raise TransactionEnded(
            f"the handler {handler.name} ended the transaction in which the batch is acked; the "
            "batch is not acked, and what its handlers wrote may be rolled back or committed",
            "Remove COMMIT, ROLLBACK and close() from the handler; to undo part of its work, use "
            "`with connection.transaction():` around that part.",
        )
