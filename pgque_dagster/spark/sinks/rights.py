"""What a role lacks to keep results: the right, what it is on, and the statement that grants it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from ...client.errors import PermissionDenied

Connection = psycopg.Connection[tuple[Any, ...]]


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
        PermissionDenied: if the role lacks it.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        grantee = sql.Identifier(user).as_string(connection)
        raise PermissionDenied(
            f'role "{user}" lacks {rights.upper()} on {on}, {why}',
            f"Let its owner run: grant {rights} on {on} to {grantee};{besides}",
        ) from error
