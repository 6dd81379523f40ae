"""Calls transactional handlers, each in a savepoint of the transaction that acks the batch."""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ..errors import ConnectionFailed, InvalidArgument
from .delivery import Delivery, Failed
from .errors import TransactionEnded
from .handlers import Handler


def call_in_savepoint(
    handler: Handler, message: Delivery, connection: Any, failed: Failed
) -> object:
    """Calls the handler, and rolls back what it wrote if its message failed.

    Raises:
        InvalidArgument: if the handler went on after an SQL error, because the transaction would
            fail for all later messages.
    """
    result = None
    with connection.transaction():
        result = handler.function(message, connection)
        if connection.info.transaction_status == TransactionStatus.INERROR:
            raise InvalidArgument(
                "the handler went on after an SQL error",
                "Use `with connection.transaction():` around the statement.",
            )
        if message in failed:
            # It is delivered again, or set aside: what the handler wrote must not stay.
            raise psycopg.Rollback
    return result


def check_transaction(handler: Handler, connection: Any) -> None:
    """Checks after an error that the transaction goes on.

    psycopg fails to leave the savepoint if the handler ended the transaction. Then no transaction
    is open, or one that has failed.

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
            "Remove COMMIT, ROLLBACK and close() from the handler; to undo a part of its work, use "
            "`with connection.transaction():` around that part.",
        )
