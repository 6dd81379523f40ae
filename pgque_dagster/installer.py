"""Installs, upgrades and removes the schema, with the SQL files in the package."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from importlib.metadata import version
from typing import Any

import psycopg
from psycopg import sql

from .client.connection import connect
from .client.errors import (
    AddonMissing,
    InvalidArgument,
    NewerInstalled,
    OlderInstalled,
    PermissionDenied,
    SchemaMissing,
    translated,
)
from .client.rights import translated_with_role

ADDONS = ("pgq", "postgremq", "qgres")
_OWNER_OF_SUPERUSERS_SESSION = """
select owner.rolname
from pg_namespace n
join pg_roles owner on owner.oid = n.nspowner and not owner.rolsuper
join pg_roles login on login.rolname = session_user and login.rolsuper
where n.nspname = 'pgque'
"""
# What an administrator has to run, in the hint of a file that creates roles.
_ROLES = re.compile(r"Let an administrator run: (.*?); then install again", re.DOTALL)
_VERSION = "select pgque.version()"
_ADDONS = "select addon_name, addon_version from pgque.addon order by addon_name"


def read_sql(file_name: str) -> str:
    """Returns the text of `pgque.sql`, `pgque_uninstall.sql` or the file of an add-on."""
    path = resources.files("pgque_dagster.sql") / file_name
    return path.read_text(encoding="utf-8")


def installed_version(url: str) -> str | None:
    """Returns the version of a database's schema, or None if it has no schema.

    Raises:
        ConnectionFailed: if the database cannot be reached.
    """
    with connect(url) as connection, translated_with_role(connection, _VERSION):
        if connection.execute("select to_regnamespace('pgque')").fetchall()[0][0] is None:
            return None
        try:
            return str(connection.execute(_VERSION).fetchall()[0][0])
        except psycopg.errors.UndefinedFunction:
            return None


def installed_addons(url: str) -> dict[str, str]:
    """Returns the versions of a database's add-ons by their names.

    Raises:
        ConnectionFailed: if the database cannot be reached.
    """
    with connect(url) as connection, translated_with_role(connection, _ADDONS):
        return _read_addons(connection)


def _read_addons(connection: psycopg.Connection[Any]) -> dict[str, str]:
    if connection.execute("select to_regclass('pgque.addon')").fetchone() == (None,):
        return {}
    return dict(connection.execute(_ADDONS).fetchall())


def install(url: str, addons: Sequence[str] = ()) -> None:
    """Installs the schema, or upgrades it to this package's version, in one transaction.

    Queues, events, positions, settings and dead letters stay. Running it again changes nothing.

    Args:
        url: the database.
        addons: add-ons to install, too, each in its own transaction. Installed ones are always
            upgraded.

    Raises:
        InvalidArgument: if there is no add-on of a name.
        ConnectionFailed: if the database cannot be reached.
        UnsupportedServer: if the server is older than PostgreSQL 14.
        PermissionDenied: if the role may not create the schema or its roles, with all that an
            administrator has to run; or if the schema belongs to another role.
        NewerInstalled: if the database has a newer version.
        psycopg.errors.LockNotAvailable: if transactions were open on the queues for a minute, or
            for the connection's lock_timeout; nothing was changed.
    """
    for addon in set(addons).difference(ADDONS):
        raise InvalidArgument(f"there is no add-on {addon!r}", f"Choose from {', '.join(ADDONS)}.")
    with as_owner(url) as connection:
        # Without parameters, psycopg sends the whole script as one text. The script contains its
        # own begin and commit.
        left = ["pgque", *sorted(addons)]
        while left:
            try:
                connection.execute(_script(left[0]).encode())
            except psycopg.errors.InsufficientPrivilege as error:
                if not _ROLES.search(error.diag.message_hint or ""):
                    raise
                connection.execute("rollback")
                raise _roles_missing(connection, error, left) from error
            if left[0] == "pgque":
                left[1:] = sorted({*_read_addons(connection), *addons})
            del left[0]


def _script(part: str) -> str:
    return read_sql("pgque.sql" if part == "pgque" else f"pgque_{part}.sql")


def _roles_missing(
    connection: psycopg.Connection[Any], error: psycopg.Error, left: Sequence[str]
) -> PermissionDenied:
    """Returns the error with what an administrator has to run for all that is left to install."""
    query = "select format('%I', rolname) from pg_roles"
    roles = {f"create role {role} nologin" for (role,) in connection.execute(query)}
    statements = [
        statement
        for part in left
        for hint in _ROLES.findall(re.sub(r"'\s+'", "", _script(part)))
        for statement in hint.split("; ")
        if statement not in roles
    ]
    done = (
        "Nothing was changed."
        if left[0] == "pgque"
        else f"pgque is installed, without {', '.join(left)}."
    )
    return PermissionDenied(
        f"{left[0]} was not installed: {error.diag.message_primary}",
        f"{done} Let an administrator run once: {'; '.join(dict.fromkeys(statements))}; then "
        "install again.",
    )


@contextmanager
def as_owner(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Connects, translates errors, and names the owner of the schema if access is denied."""
    query = "select nspowner::regrole::text from pg_namespace where nspname = 'pgque'"
    with connect(url) as connection:
        found = connection.execute(query).fetchone()
        try:
            with translated():
                yield connection
        except PermissionDenied as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.Error) and cause.diag.message_hint:
                raise
            way_out = (
                f"Only the schema's owner may do this: log in as {found[0]}, or a member of it."
                if found
                else "Log in as the owner of the database, or a role with CREATE on it."
            )
            raise PermissionDenied(str(error.args[0]), way_out) from cause


def _refuse_superuser(url: str) -> None:
    """Keeps a superuser from calling functions of a schema whose owner is not a superuser.

    The scripts refuse this, too, but the version is read before they run.
    """
    with connect(url) as connection:
        found = connection.execute(_OWNER_OF_SUPERUSERS_SESSION).fetchone()
    if found is not None:
        raise PermissionDenied(
            f"pgque belongs to {found[0]}, who is not a superuser: code of that role could run "
            "with the rights of this superuser's session",
            f"Connect as {found[0]}, or as a member of that role who is not a superuser.",
        )


def install_if_missing(url: str, addons: Sequence[str] = ()) -> bool:
    """Installs the schema and add-ons that the database lacks; returns whether it did.

    Raises:
        PgqueError: as for `install`.
        OlderInstalled: if an add-on is missing and the schema is older than this package.
    """
    if installed_version(url) is not None and installed_addons(url).keys() >= set(addons):
        return False
    with suppress(SchemaMissing):
        check_version(url)
    install(url, addons)
    return True


def upgrade(url: str, addons: Sequence[str] = ()) -> bool:
    """Installs what is missing or older than this package; returns whether it did.

    Raises:
        PgqueError: as for `install`.
    """
    _refuse_superuser(url)
    try:
        check_version(url, addons)
    except (SchemaMissing, OlderInstalled):
        install(url, addons)
        return True
    return False


def check_version(url: str, addons: Sequence[str] = ()) -> None:
    """Checks that the schema and its add-ons have this package's version.

    Args:
        url: the database.
        addons: those that must be there.

    Raises:
        SchemaMissing: if the database has no schema, or lacks an add-on.
        OlderInstalled: if the schema or an add-on has an older version.
        NewerInstalled: if the schema has a newer version.
    """
    installed = installed_version(url)
    if installed is None:
        raise SchemaMissing(
            "this database has no pgque schema",
            "Run `pgque install`, or PgqueResource(install='if_missing').",
        )
    ours = version("pgque-dagster")
    if _order(installed) < _order(ours):
        raise OlderInstalled(
            f"the database has pgque {installed}, which is older than this package's {ours}",
            "Run `pgque install`, or PgqueResource(install='upgrade'). Queues and events stay.",
        )
    if _order(installed) > _order(ours):
        raise NewerInstalled(
            f"the database has pgque {installed}, which is newer than this package's {ours}",
            f"Install pgque-dagster {installed} or newer here.",
        )
    found = installed_addons(url)
    for addon in addons:
        if addon not in found:
            raise AddonMissing(
                f"this database lacks the add-on {addon}",
                f"Run `pgque install --with {addon}`, or PgqueResource(install='if_missing').",
            )
    for addon, addon_version in found.items():
        if addon_version != installed:
            raise OlderInstalled(
                f"the database has pgque {installed} with {addon} {addon_version}",
                "Run `pgque install`, which upgrades add-ons, too.",
            )


def _order(version: str) -> list[int]:
    """Returns the numbers for comparing versions, as in the SQL, without any suffix."""
    numbers = re.match(r"[0-9.]*[0-9]", version)
    return [int(number) for number in numbers[0].split(".")] if numbers else []


def uninstall(url: str, *, force: bool = False, addon: str | None = None) -> None:
    """Removes the schema with all queues and positions, and its jobs in pg_cron; the roles stay.

    Args:
        url: the database.
        force: removes the schema even if queues have unread events.
        addon: removes this add-on alone; by default all add-ons go with the schema.

    Raises:
        SchemaMissing: if there is no schema or no such add-on, or an older version that cannot
            check for unread events; `install` upgrades it.
        UnreadEvents: if queues have unread events and `force` is false.
        PermissionDenied: if the role does not own the schema.
    """
    _refuse_superuser(url)
    with as_owner(url) as connection:
        if installed_version(url) is None:
            raise SchemaMissing("this database has no pgque schema")
        if addon is not None and addon not in installed_addons(url):
            raise AddonMissing(
                f"the add-on {addon} is not installed in this database",
                f"Installed are: {', '.join(sorted(installed_addons(url))) or 'none'}.",
            )
        function = sql.Identifier(addon or "pgque", "uninstall")
        connection.execute(sql.SQL("select {}(%s)::text").format(function), [force])
