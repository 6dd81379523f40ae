"""Rights on tables outside the schema pgque, and the tables that the package creates itself.

Errors about missing rights have the statement that grants them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from .errors import InvalidArgument, PermissionDenied

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


def create_missing_table(
    connection: Connection, schema: str | None, name: str, columns: str, rights: str, what: str
) -> None:
    """Creates a table of the package, unless it is there.

    Args:
        connection: outside of a transaction.
        schema: the table's schema; None for the first schema of the connection's search_path.
        name: the table's name.
        columns: its columns in parentheses.
        rights: the rights that its user needs, as in GRANT.
        what: what the table is, for the error.

    Raises:
        PermissionDenied: if it is missing and the role may not create it, with the statements that
            an administrator runs instead.
    """
    table = sql.Identifier(*([schema] if schema else []), name).as_string(connection)
    if connection.execute("select to_regclass(%s)", (table,)).fetchone() != (None,):
        return
    if schema is None:
        ((schema,),) = connection.execute("select current_schema()::text").fetchall()
    if schema is None:
        raise InvalidArgument(
            f"the {what} {name} is missing, and the search_path has no schema to create it in",
            "Create a schema, and name it in the search_path of the role.",
        )
    full, user = (
        sql.Identifier(*names).as_string(connection)
        for names in ((schema, name), (connection.info.user,))
    )
    with (
        # If another process creates it at the same time, the row type may be there before the table
        # is noticed.
        suppress(
            psycopg.errors.DuplicateTable,
            psycopg.errors.DuplicateObject,
            psycopg.errors.UniqueViolation,
        ),
        needing(
            connection,
            "create",
            f"schema {sql.Identifier(schema).as_string(connection)}",
            f"where the {what} {name} is missing",
            besides=f" or: create table {full} {columns}; grant {rights} on {full} to {user};",
        ),
    ):
        connection.execute(f"create table {full} {columns}".encode())


def _lacks_right(error: psycopg.Error, on: str) -> bool:
    """Says whether the error is about a right on the object, named as in GRANT."""
    last = _LAST_NAME.search(on)
    name = (last[1] or last[2]).replace('""', '"') if last else on
    named = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.diag.message_primary or "")
    return error.diag.source_function == _LACKS_RIGHT and named is not None
