"""What a role lacks to keep results: the right, what it is on, and the statement that grants it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from ...client.errors import PermissionDenied

Connection = psycopg.Connection[tuple[Any, ...]]


# The server's own function that says so of any object; names of functions are not translated.
_LACKS_RIGHT = "aclcheck_error"
_LAST_NAME = re.compile(r'"((?:[^"]|"")+)"$|([^".\s]+)$')


@contextmanager
def needing(
    connection: Connection, rights: str, on: str, why: str, *, besides: str = ""
) -> Iterator[None]:
    """Says what to grant where the server refuses what the block does.

    Args:
        connection: whose role is refused.
        rights: what the role needs, as GRANT names it.
        on: the object, as GRANT names it.
        why: what for.
        besides: what else can be done.

    Raises:
        PermissionDenied: if the role lacks it, or the server refuses something else, such as by a
            policy or in a trigger; then in the server's words.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        if not _lacks_right(error, on):
            raise PermissionDenied(
                f'role "{user}" was refused on {on}, {why}: {error.diag.message_primary or error}',
                f"It lacks no right on {on} itself: look at its policies, its triggers and what "
                "the message names.",
            ) from error
        grantee = sql.Identifier(user).as_string(connection)
        raise PermissionDenied(
            f'role "{user}" lacks {rights.upper()} on {on}, {why}',
            f"Let its owner run: grant {rights} on {on} to {grantee};{besides}",
        ) from error


def _lacks_right(error: psycopg.Error, on: str) -> bool:
    """Says whether the error is about a right on the object, as GRANT names it."""
    last = _LAST_NAME.search(on)
    name = (last[1] or last[2]).replace('""', '"') if last else on
    named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.diag.message_primary or "")
    return error.diag.source_function == _LACKS_RIGHT and named is not None
