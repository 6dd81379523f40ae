"""The role that a call needs, so that an error can name the role to grant."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from .errors import PermissionDenied, translated

# Functions that the client calls. Those not listed need pgque_reader. sql/ops/grants.sql has the
# grants.
_WRITER = """
abort_staging cancel_scheduled dlq_replay dlq_replay_all dlq_replay_matching open_staging
publish_staging send send_at send_batch send_idem staging_table
"""
_ADMIN = """
create_queue dlq_purge drop_queue force_next_tick maint maint_operations pause_queue
resume_queue run_maintenance set_queue_config start status stop ticker ticker_pace
"""
_CALL = re.compile(r"\bpgque\.(\w+)\s*\(")


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


@contextmanager
def translated_with_role(connection: psycopg.Connection[Any], statement: str) -> Iterator[None]:
    """Translates errors as `translated` does, and names the role to grant when access is denied.

    If access was denied inside a function, or the server sent a hint, the error stays as it is.

    Raises:
        PgqueError: the subclass for the database error.
    """
    try:
        with translated():
            yield
    except PermissionDenied as error:
        cause, role = error.__cause__, role_for(statement)
        if not isinstance(cause, psycopg.Error) or role is None:
            raise
        if cause.diag.context or cause.diag.message_hint:
            raise
        user = connection.info.user
        raise PermissionDenied(
            str(error.args[0]), f'Role "{user}" needs {role}: {grant(role, user)}'
        ) from cause
