"""What can go wrong, as one small hierarchy.

The SQL raises its errors under a class of codes of its own (`PQ…`); they are mapped here by code,
never by text.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg


class PgqueError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes:
        hint: what to do about it, or an empty string.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        """The message and, after it, what to do; one line."""
        text = f"{self.args[0]}. {self.hint}" if self.hint else str(self.args[0])
        return " ".join(text.split())


class ConnectionFailed(PgqueError):
    """The database cannot be reached, or the connection broke."""


class DatabaseError(PgqueError):
    """The database refused a statement for a reason that no other class names.

    `__cause__` is psycopg's own error.
    """


class SchemaMissing(PgqueError):
    """The database has no pgque schema."""


class UnsupportedServer(PgqueError):
    """The server is older than PostgreSQL 14."""


class PermissionDenied(PgqueError):
    """The role lacks pgque_reader, pgque_writer or pgque_admin."""


class QueueNotFound(PgqueError):
    """There is no queue of that name."""


class ConsumerNotFound(PgqueError):
    """The consumer is not registered on the queue."""


class BatchNotOpen(PgqueError):
    """The batch was finished before, taken back, or never existed."""


class BatchLeased(PgqueError):
    """Somebody else holds a live lease on the batch."""


class LeaseLost(PgqueError):
    """The lease ran out and the batch went to another owner; this attempt must be discarded."""


class InvalidArgument(PgqueError):
    """A value is out of range, null or of the wrong form."""


class MalformedPayload(PgqueError):
    """A payload is no JSON where it has to be, holds a byte that text cannot, or fits no schema."""


class QueueClosed(PgqueError):
    """The queue takes no events now (disable_insert)."""


class QueueInUse(PgqueError):
    """The queue still has consumers, or dead letters."""


class StaleReadPlan(PgqueError):
    """An event table was truncated or rewritten after a read was planned."""


class EventNotInBatch(PgqueError):
    """An id was passed that the batch did not deliver."""


class DeadLetterNotFound(PgqueError):
    """The dead letter was replayed or purged before."""


class TransactionOutdated(PgqueError):
    """The transaction's snapshot is too old; the same in a new transaction will work."""


class WrongIsolation(PgqueError):
    """Maintenance was asked for in a transaction stricter than READ COMMITTED."""


class ChangeRefused(PgqueError):
    """A trigger of the queue refused a row's change: denied, without a key, or of the key."""


class WrongConsumerRole(PgqueError):
    """The call is not for this consumer: a normal one, a cooperative one, or a subconsumer."""


class ConsumerInUse(PgqueError):
    """The consumer has a batch open, or subconsumers, which must end first."""


class TickRefused(PgqueError):
    """The queue's ticker is paused, or its ticks come from another source."""


class NotAdopted(PgqueError):
    """The database was restored from a dump, and its queues are not renumbered yet."""


class SchedulerMissing(PgqueError):
    """There is no pg_cron to schedule ticks with, or it lives in another database."""


class UnreadEvents(PgqueError):
    """Queues hold events that were not read yet, so nothing is removed."""


class NewerInstalled(PgqueError):
    """A newer version of the schema is installed than the one to install."""


class OlderInstalled(PgqueError):
    """An older version of the schema is installed than the package needs."""


class TicksUnavailable(PgqueError):
    """Ticks were asked for that the consumer has finished, or that do not exist."""


class StagingLost(PgqueError):
    """Events written to be published together are gone or incomplete; nothing was published."""


_BY_CODE: dict[str, type[PgqueError]] = {
    "PQ001": QueueNotFound,
    "PQ002": ConsumerNotFound,
    "PQ003": BatchNotOpen,
    "PQ004": BatchLeased,
    "PQ005": InvalidArgument,
    "PQ006": QueueClosed,
    "PQ007": QueueInUse,
    "PQ008": StaleReadPlan,
    "PQ009": EventNotInBatch,
    "PQ010": DeadLetterNotFound,
    "PQ011": UnsupportedServer,
    "PQ012": LeaseLost,
    "PQ013": WrongIsolation,
    "PQ014": ChangeRefused,
    "PQ015": WrongConsumerRole,
    "PQ016": ConsumerInUse,
    "PQ017": TickRefused,
    "PQ018": NotAdopted,
    "PQ019": SchedulerMissing,
    "PQ020": UnreadEvents,
    "PQ021": NewerInstalled,
    "PQ022": StagingLost,
    "PQ023": TicksUnavailable,
    "40001": TransactionOutdated,
    "22P02": MalformedPayload,
    "22021": MalformedPayload,
    "22P05": MalformedPayload,
}


def error_from(error: psycopg.Error) -> PgqueError:
    """Finds the error of this package that a database error stands for.

    Args:
        error: as psycopg raised it.

    Returns:
        The error to raise in its place.
    """
    message = error.diag.message_primary or str(error)
    hint = error.diag.message_hint or ""
    if error.sqlstate in _BY_CODE:
        return _BY_CODE[error.sqlstate](message, hint)
    if isinstance(error, pg.InvalidSchemaName | pg.UndefinedFunction):
        return SchemaMissing(
            f"this database has no pgque schema, or an older one: {message}",
            "Run `pgque install`, or PgqueResource(install='upgrade').",
        )
    if isinstance(error, pg.InsufficientPrivilege):
        return PermissionDenied(
            message,
            hint or "Grant pgque_reader (to consume), pgque_writer (to send) or pgque_admin (all).",
        )
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return MalformedPayload(message)
    if isinstance(error, psycopg.OperationalError) and _is_about_connection(error.sqlstate):
        return ConnectionFailed(
            message, "Check that the server runs and the connection string names it."
        )
    return DatabaseError(message, hint)


def _is_about_connection(sqlstate: str | None) -> bool:
    """Lock timeouts, cancelled queries and the like are operational errors too, but not this."""
    return sqlstate is None or sqlstate.startswith(("08", "28", "3D", "53300", "57P"))


@contextmanager
def translated() -> Iterator[None]:
    """Turns database errors raised inside into those of this package, with the cause chained.

    Raises:
        PgqueError: the subclass that the database error stands for.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise MalformedPayload(f"a text is not valid Unicode: {error}") from error
    except psycopg.Error as error:
        raise error_from(error) from error
