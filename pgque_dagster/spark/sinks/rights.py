"""Errors about missing rights of a sink's role, with the statement that grants them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from ...client.errors import PermissionDenied

Connection = psycopg.Connection[tuple[Any, ...]]


# The server's function that raises the error for any object. Unlike messages, its name is not
# translated.
_LACKS_RIGHT = "aclcheck_error"
_LAST_NAME = re.compile(r'"((?:[^"]|"")+)"$|([^".\s]+)$')


@contextmanager
def needing(
    connection: Connection, rights: str, on: str, why: str, *, besides: str = ""
) -> Iterator[None]:
    """Says what to grant if the server denies the role what the block does.

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
    """Says whether the error is about a right on the object, named as in GRANT."""
    last = _LAST_NAME.search(on)
    name = (last[1] or last[2]).replace('""', '"') if last else on
    named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.diag.message_primary or "")
    return error.diag.source_function == _LACKS_RIGHT and named is not None
