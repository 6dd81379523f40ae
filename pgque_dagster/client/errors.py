"""The errors of this package, in one hierarchy.

The SQL functions raise errors with codes of class `PQ`. This module maps them by code,
not by text, which the server may translate.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg


def sentences(*texts: str) -> str:
    """Joins the texts into one line, with a period after each but the last."""
    parts = [" ".join(text.split()) for text in texts if text.strip()]
    ends = [part if part.endswith(tuple(".?!:;,")) else f"{part}." for part in parts[:-1]]
    return " ".join([*ends, *parts[-1:]])


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a question that names similar names, or an empty text."""
    near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}? " if near else ""


def can_tell(error: BaseException) -> bool:
    """Returns whether the error has a text: its `__str__` may raise."""
    try:
        str(error)
    except Exception:
        return False
    return True


def told(error: BaseException) -> str:
    """Returns the class and the text of an error, even if its `__str__` raises."""
    name = type(error).__name__
    return f"{name}: {error}" if can_tell(error) else f"{name}, which cannot be written as text"


class PgqueError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes:
        hint: what to do about it, or an empty string.
        passing: whether it goes away by itself or an administrator fixes it, independent of the
            events. For other classes, `passes` looks at the cause.
    """

    passing = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        """Returns the message and the hint on one line."""
        return sentences(str(self.args[0]), self.hint)


class ConnectionFailed(PgqueError):
    """The database cannot be reached, or the connection broke."""

    passing = True


class DatabaseError(PgqueError):
    """The database refused a statement for a reason without its own class.

    `__cause__` is psycopg's own error.
    """


class DatabaseUnready(DatabaseError):
    """The database cannot run a statement for now: a lock, its disk, its memory, a standby."""

    passing = True


class SchemaMissing(PgqueError):
    """The database has no pgque schema."""


class AddonMissing(SchemaMissing):
    """The database has the pgque schema, but not the add-on that the call needs."""


class UnsupportedServer(PgqueError):
    """The server is older than PostgreSQL 14."""


class PermissionDenied(PgqueError):
    """The role lacks pgque_reader, pgque_writer or pgque_admin."""

    passing = True


class QueueNotFound(PgqueError):
    """There is no queue of that name."""


class ConsumerNotFound(PgqueError):
    """The consumer is not registered on the queue."""


class BatchNotOpen(PgqueError):
    """The batch is finished, was taken back, or never existed."""


class BatchLeased(PgqueError):
    """Another owner has a live lease on the batch."""


class LeaseLost(PgqueError):
    """The lease expired and another owner has the batch. Discard this attempt."""


class InvalidArgument(PgqueError):
    """A value is out of range, null or malformed."""


class MalformedPayload(PgqueError):
    """A payload is not JSON, contains a byte that text cannot store, or does not fit a schema."""


class CallRefused(PgqueError):
    """The state of the queue, the consumer or the database does not allow the call.

    The message says why, and the SQLSTATE of `__cause__` distinguishes the reasons.
    """


class QueueInUse(PgqueError):
    """The queue still has consumers, dead letters or scheduled events."""


class StaleReadPlan(PgqueError):
    """An event table was truncated or rewritten between planning a read and reading it."""


class EventNotInBatch(PgqueError):
    """The batch has no event with this id."""


class TransactionOutdated(PgqueError):
    """The transaction's snapshot is too old. Repeat the work in a new transaction."""

    passing = True


class UnreadEvents(PgqueError):
    """Queues hold unread events or dead letters, so nothing was removed."""


class NewerInstalled(PgqueError):
    """The installed schema is newer than the one to install."""


class OlderInstalled(PgqueError):
    """The installed schema is older than the package needs."""


class TicksUnavailable(PgqueError):
    """The requested ticks do not exist, or the consumer has finished them."""


class StagingLost(PgqueError):
    """Events staged to be published together are gone or incomplete; nothing was published."""


class SkipsEvents(PgqueError):
    """The consumer would skip events and never get them."""


class HandlerMissing(PgqueError):
    """A batch has events of a type without a handler. No event of the batch was handled."""


class TransactionEnded(PgqueError):
    """A transactional handler ended the transaction in which the batch is acked."""


class TargetOutOfStep(PgqueError):
    """The batch does not follow the last batch that the target has. Nothing was applied."""


class TargetRefused(PgqueError):
    """The target refused a batch or one of its events. Nothing was applied.

    `__cause__` is psycopg's own error.
    """


_BY_CODE: dict[str, type[PgqueError]] = {
    "PQ001": QueueNotFound,
    "PQ002": ConsumerNotFound,
    "PQ003": BatchNotOpen,
    "PQ004": BatchLeased,
    "PQ005": InvalidArgument,
    "PQ006": CallRefused,
    "PQ007": QueueInUse,
    "PQ008": StaleReadPlan,
    "PQ009": EventNotInBatch,
    "PQ010": CallRefused,
    "PQ011": UnsupportedServer,
    "PQ012": LeaseLost,
    "PQ013": CallRefused,
    "PQ014": CallRefused,
    "PQ015": CallRefused,
    "PQ016": CallRefused,
    "PQ017": CallRefused,
    "PQ018": CallRefused,
    "PQ019": CallRefused,
    "PQ020": UnreadEvents,
    "PQ021": NewerInstalled,
    "PQ022": StagingLost,
    "PQ023": TicksUnavailable,
    "PQ024": CallRefused,
    "PQ025": SkipsEvents,
    "40001": TransactionOutdated,
    "22P02": MalformedPayload,
    "22021": MalformedPayload,
    "22P05": MalformedPayload,
}


_LACKS_RIGHT = "42501"
# Connections, logins, rollbacks by the server, rights, a read-only server, resources such as disk
# and connections, locks, administrators and shutdowns, and the server's own files.
_PASSING = ("08", "25006", "28", "40", _LACKS_RIGHT, "53", "55006", "55P03", "57", "58")

# Ended by an administrator or a shutdown, a crash, idle_session_timeout, or noticed later.
_SESSION_ENDED = ("57P01", "57P02", "57P05", "the connection is closed", "the connection is lost")
# The server function that raises the error; its name is not translated.
_NOT_IN_ENCODING = "report_untranslatable_char"
_PREPARED = (pg.DuplicatePreparedStatement, pg.InvalidSqlStatementName)
_ADDON = re.compile(r'"(pgq|postgremq|qgres)\b')
_INSTALL = "Run `pgque install`, or PgqueResource(install='upgrade')."


def error_from(error: psycopg.Error | UnicodeEncodeError) -> PgqueError:
    """Returns this package's error for an error of psycopg."""
    if isinstance(error, UnicodeEncodeError):
        return MalformedPayload(f"a text is not valid Unicode: {error}")
    message = error.diag.message_primary or str(error)
    hint = error.diag.message_hint or ""
    if error.diag.source_function == _NOT_IN_ENCODING:
        hint = (
            "Send bytes, or JSON with the character escaped, as json.dumps writes it; or use a "
            "database in UTF8."
        )
    if isinstance(error, pg.CharacterNotInRepertoire):
        hint = (
            "A stored event holds such bytes: find it in a session with client_encoding sql_ascii, "
            "and make it a dead letter: pgque dead-letters add."
        )
    if error.sqlstate in _BY_CODE:
        return _BY_CODE[error.sqlstate](message, hint)
    addon = _ADDON.search(message)
    if isinstance(error, pg.InvalidSchemaName | pg.UndefinedTable) and addon:
        return AddonMissing(
            f"this database lacks the add-on {addon[1]}: {message}",
            f"Run `pgque install --with {addon[1]}`.",
        )
    if isinstance(error, pg.InvalidSchemaName):
        return SchemaMissing(f"this database has no pgque schema: {message}", _INSTALL)
    # Names that the server never translates. psycopg sends huge numbers as numeric.
    if isinstance(error, pg.UndefinedFunction) and "numeric" in message:
        return InvalidArgument(
            f"a number is not whole or is out of range: {message}",
            f"Pass an int of at most {2**63 - 1}.",
        )
    if isinstance(error, pg.UndefinedFunction) and "pgque." in message:
        return SchemaMissing(
            "this database has an older pgque schema, or an argument has a type or a size that the "
            f"function does not take: {message}",
            f"Check the arguments. If they are right: {_INSTALL}",
        )
    if isinstance(error, pg.InsufficientPrivilege):
        return PermissionDenied(
            message,
            hint or "Grant pgque_reader (to consume), pgque_writer (to send) or pgque_admin (all).",
        )
    if isinstance(error, pg.ReadOnlySqlTransaction):
        return DatabaseUnready(
            message,
            "On a standby: connect to the primary, such as with target_session_attrs=read-write. "
            "On a primary: turn default_transaction_read_only off.",
        )
    if isinstance(error, pg.InFailedSqlTransaction):
        return DatabaseError(message, "An earlier statement of the transaction failed: roll back.")
    if isinstance(error, _PREPARED) and "_pg3_" in message:
        return DatabaseError(
            message,
            "A pooler moved the connection away from the session with psycopg's prepared "
            "statement: connect with prepare_threshold=None.",
        )
    if isinstance(error, psycopg.DataError) and error.sqlstate is None:
        return MalformedPayload(message)
    if isinstance(error, psycopg.OperationalError) and _is_about_connection(error.sqlstate):
        has_ended = (error.sqlstate or message) in _SESSION_ENDED
        return ConnectionFailed(
            sentences(*message.splitlines()),
            "Repeat what is not committed: a client with a URL connects again, and a connection "
            "that you gave to it has to be replaced."
            if has_ended
            else "Correct the password, or the role's right to log in."
            if "authentication failed" in message
            else "Check that the server runs and the connection string names it.",
        )
    return (DatabaseUnready if passes(error) else DatabaseError)(message, hint)


def passes(error: BaseException | None) -> bool:
    """Returns whether an error, or its cause, goes away by itself or by an administrator's work.

    The caller retries such errors forever. Any other error may depend on the events.
    """
    while error is not None:
        if isinstance(error, psycopg.Error):
            if error.sqlstate is not None:
                return error.sqlstate.startswith(_PASSING)
            return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if isinstance(error, PgqueError) and error.passing:
            return True
        error = error.__cause__
    return False


def is_refusal(error: BaseException | None) -> bool:
    """Returns whether psycopg itself refused a statement, not this package or the server."""
    if not isinstance(error, psycopg.Error) or (error.sqlstate or "").startswith("PQ"):
        return False
    return error.sqlstate == _LACKS_RIGHT or not passes(error)


def _is_about_connection(sqlstate: str | None) -> bool:
    """Distinguishes connection errors from other operational errors, such as lock timeouts."""
    return sqlstate is None or sqlstate.startswith(("08", "28", "3D", "53300", "57P"))


@contextmanager
def translated() -> Iterator[None]:
    """Raises psycopg errors of the block as errors of this package, with the cause chained."""
    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise error_from(error) from error


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Prefixes this package's errors in the block with where they occurred."""
    try:
        yield
    except PgqueError as error:
        error.args = (f"{prefix}: {error.args[0]}",)
        raise
