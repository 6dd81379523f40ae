"""Missing rights: errors name the role to grant, or the statement that grants the right."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from .connection import BaseConnection
from .errors import PermissionDenied, PgqueError, error_from

Connection = psycopg.Connection[tuple[Any, ...]]

# Functions of the engine and the add-ons that the client calls, by the role that grants.sql names.
# Functions that are not listed need pgque_reader.
_WRITER = """
abort_staging cancel_scheduled capture capture_columns capture_gap capture_relations
capture_settings capture_table captured_name captured_tables current_event_table dlq_replay
dlq_replay_all dlq_replay_matching insert_event key_of_table open_staging publish_staging relays
send send_at send_batch send_idem snapshot_tick source_columns staging_table table_facts
table_shape uncapture
"""
_ADMIN = """
create_queue create_topic dlq_purge drop_queue force_next_tick insert_event_raw log_queue log_topic
maint maint_operations pause_queue queue__create relay_state relay_to resume_queue run_maintenance
set_queue_config set_relay start status stop ticker ticker_pace
"""
_CALL = re.compile(r"\b(?:pgque|postgremq|qgres)\.(\w+)\s*\(")
# The server function that raises the error for any object. Unlike messages, its name is not
# translated.
_LACKS_RIGHT = "aclcheck_error"
_LAST_NAME = re.compile(r'"((?:[^"]|"")+)"$|([^".\s]+)$')


def role_for(statement: str) -> str | None:
    """Returns the role that a statement needs; None if it calls no function of pgque."""
    names = set(_CALL.findall(statement))
    if names & set(_ADMIN.split()):
        return "pgque_admin"
    if names & set(_WRITER.split()):
        return "pgque_writer"
    return "pgque_reader" if names else None


def grant(role: str, user: str) -> str:
    """Returns the GRANT statement for a role and a user."""
    return f"grant {role} to {sql.Identifier(user).as_string(None)};"


def error_with_role(
    connection: BaseConnection[Any],
    statement: str,
    cause: psycopg.Error | UnicodeEncodeError,
) -> PgqueError:
    """Returns the package's error for a database error, like `error_from`.

    If access was denied, it names the role to grant, unless the denial came from inside a function
    or the server sent a hint.
    """
    error = error_from(cause)
    role = role_for(statement)
    if not isinstance(error, PermissionDenied) or role is None:
        return error
    assert isinstance(cause, psycopg.Error)
    if cause.diag.context or cause.diag.message_hint:
        return error
    user = connection.info.user
    needed = f"{role}: {grant(role, user)}"
    ours = ("pgque", "postgremq", "qgres", *_CALL.findall(statement))
    if cause.diag.source_function == _LACKS_RIGHT and not any(_lacks_right(cause, x) for x in ours):
        # For example, the right on the schema of a table that an argument names.
        needed = f"the right on what the message names, or {needed}"
    return PermissionDenied(str(error.args[0]), f'Role "{user}" needs {needed}')


@contextmanager
def translated_with_role(connection: BaseConnection[Any], statement: str) -> Iterator[None]:
    """Raises psycopg errors of the block as the errors that `error_with_role` returns."""
    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise error_with_role(connection, statement, error) from error


@contextmanager
def needing(
    connection: Connection, rights: str, on: str, why: str, *, besides: str = ""
) -> Iterator[None]:
    """Names what to grant if the server denies the role what the block does.

    Args:
        connection: the connection of the role.
        rights: the rights that the role needs, as in GRANT.
        on: the object, as in GRANT.
        why: the purpose, for the message.
        besides: an alternative to granting, for the hint.

    Raises:
        PermissionDenied: if the role lacks the rights. If something else denies access, such as a
            policy or a trigger, the message is the server's.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        if not _lacks_right(error, on):
            raise PermissionDenied(
                f'role "{user}" was refused on {on}, {why}: {error.diag.message_primary or error}',
                f"The role has the rights on {on} itself: check its policies, its triggers and "
                "what the message names.",
            ) from error
        grantee = sql.Identifier(user).as_string(connection)
        raise PermissionDenied(
            f'role "{user}" lacks {rights.upper()} on {on}, {why}',
            f"Let its owner run: grant {rights} on {on} to {grantee};{besides}",
        ) from error


def _lacks_right(error: psycopg.Error, on: str) -> bool:
    """Returns whether the error is about a right on the object, named as in GRANT."""
    last = _LAST_NAME.search(on)
    name = (last[1] or last[2]).replace('""', '"') if last else on
    named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.diag.message_primary or "")
    return error.diag.source_function == _LACKS_RIGHT and named is not None
