"""The role that a call needs, so that an error can name the role to grant."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from .connection import BaseConnection
from .errors import PermissionDenied, PgqueError, error_from

# Functions of the engine and of postgremq that the client calls. Those not listed need
# pgque_reader. sql/ops/grants.sql and sql/addons/postgremq/grants.sql have the grants.
_WRITER = """
abort_staging cancel_scheduled capture capture_columns capture_table captured_tables
current_event_table dlq_replay dlq_replay_all dlq_replay_matching insert_event open_staging
publish_message publish_staging send send_at send_batch send_idem snapshot_tick source_columns
staging_table table_shape uncapture
"""
_ADMIN = """
create_queue create_topic dlq_purge drop_queue force_next_tick insert_event_raw log_topic maint
maint_operations pause_queue resume_queue run_maintenance set_queue_config start status stop
ticker ticker_pace
"""
_CALL = re.compile(r"\b(?:pgque|postgremq)\.(\w+)\s*\(")
# Functions of the add-on qgres; those not listed need qgres__queue_delete.
_SERIAL_MANAGE = "queue__create queue__drop log_queue unlog_queue"
_SERIAL_INSERT = "Publish add"
_SERIAL_CALL = re.compile(r'\bqgres\."?(\w+)"?\s*\(')


def role_for(statement: str) -> str | None:
    """Returns the role that a statement needs; None if it calls no function of ours."""
    serial = _SERIAL_CALL.findall(statement)
    if serial == ["logged_as"]:
        return "pgque_reader"
    if serial:
        manages, inserts = (serial[0] in each.split() for each in (_SERIAL_MANAGE, _SERIAL_INSERT))
        return f"qgres__queue_{'manage' if manages else 'insert' if inserts else 'delete'}"
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
    cause: psycopg.Error | UnicodeEncodeError | NotImplementedError,
) -> PgqueError:
    """Returns the error for a database error as `error_from` does.

    If access was denied, it names the role to grant, unless access was denied inside a function or
    the server sent a hint.
    """
    error = error_from(cause)
    role = role_for(statement)
    if not isinstance(error, PermissionDenied) or role is None:
        return error
    assert isinstance(cause, psycopg.Error)
    if cause.diag.context or cause.diag.message_hint:
        return error
    user = connection.info.user
    return PermissionDenied(str(error.args[0]), f'Role "{user}" needs {role}: {grant(role, user)}')


@contextmanager
def translated_with_role(connection: BaseConnection[Any], statement: str) -> Iterator[None]:
    """Raises psycopg errors of the block as `error_with_role` returns them.

    Raises:
        PgqueError: the subclass for the database error.
    """
    try:
        yield
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise error_with_role(connection, statement, error) from error
