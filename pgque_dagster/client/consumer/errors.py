"""The errors of consumers."""

from ..errors import PgqueError


class HandlerMissing(PgqueError):
    """A batch has events of a type without a handler. No event of the batch was handled."""


class TransactionEnded(PgqueError):
    """A transactional handler ended the transaction in which the batch is acked."""
