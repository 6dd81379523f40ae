"""Users who may log in and have some of the three roles, and nothing else."""

from psycopg import sql

from tests.support.queues.sql import connect
from tests.support.servers.databases import as_user


def as_login(url: str, *roles: str) -> str:
    """The URL of the same database for a login that was granted these roles and no others.

    The logins belong to the tests' server and go with it.
    """
    name = "_".join(("login", *(role.removeprefix("pgque_") for role in roles)))
    with connect(url) as db:
        if not db.execute("select 1 from pg_roles where rolname = %s", (name,)).fetchone():
            db.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
            for role in roles:
                db.execute(
                    sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name))
                )
    return as_user(url, name)
