"""Calls transactional handlers, each in a savepoint of the transaction that acks the batch."""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ..errors import ConnectionFailed, InvalidArgument, TransactionEnded
from .delivery import Delivery, Failed
from .handlers import Handler

# Constraints that are immediate at first stay so: a handler may count on their errors.
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
# A limit of the program, and an object that is not in the state that is needed: psycopg counts
# them as operational, but the same statement fails again.
_LASTING = ("54", "55000")


def is_refusal(error: BaseException | None) -> bool:
    """Whether it is a psycopg error that the same statements, or their COMMIT, cause again."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    is_operational = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_LASTING) or not (is_operational or state.startswith("PQ"))


def call_in_savepoint(
    handler: Handler, message: Delivery, connection: Any, failed: Failed, checks: bool
) -> object:
    """Calls the handler, checks deferred constraints, and rolls back if its message failed.

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
        if checks:
            connection.execute(CHECK_CONSTRAINTS)
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
