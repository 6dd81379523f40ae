"""`pgque health`: reports what is wrong and what to do."""

from collections.abc import Iterator
from importlib.metadata import version

import click

from ... import installer
from ...client import Client, NewerInstalled, OlderInstalled, PgqueError, SchemaMissing
from ...client.models import HealthCheck
from ..app import command
from ..database import Database
from ..errors import NO, one_line, without_passwords
from ..printing import show_rows

_SERVER = "select current_setting('server_version'), current_user::text, pg_is_in_recovery()"
_ROLES = (
    "select r.rolname::text from pg_roles r where r.rolname in"
    " ('pgque_reader', 'pgque_writer', 'pgque_admin') and pg_has_role(r.oid, 'member')"
    " union select 'the owner of schema pgque' from pg_namespace n where n.nspname = 'pgque'"
    " and pg_has_role(n.nspowner, 'usage') order by 1"
)


@command(
    "pgque health",
    "pgque health orders --all",
    "pgque --url service=shop health || alert 'a queue needs attention'",
)
@click.argument("queue", required=False)
@click.option("--all", "show_all", is_flag=True, help="Show the checks that passed as well.")
def health(database: Database, queue: str | None, show_all: bool) -> None:
    """Look for problems that stop all queues, or QUEUE, from working.

    It checks the connection, versions, roles, ticks and consumers. Every finding says what to do.
    Exits with 3 if something is critical. `pgque status` shows the state of everything.
    """
    database.check_exists()
    checks = list(_examine(database, queue))
    rows = [
        {"status": each.status, "queue": each.queue, "check": each.check, "detail": each.detail}
        for each in checks
        if show_all or each.status != "ok"
    ]
    show_rows(rows, f"all {len(checks)} checks passed")
    critical = sum(each.status == "critical" for each in checks)
    if critical:
        click.echo(f"pgque: {critical} of {len(checks)} checks are critical", err=True)
        click.get_current_context().exit(NO)


def _examine(database: Database, queue: str | None) -> Iterator[HealthCheck]:
    """Checks from the connection inward, and stops where the next check cannot work."""
    try:
        with database.client() as client:
            yield from _server(client)
            schema = _schema(database.url)
            yield schema
            if schema.status != "critical":
                yield from _queues(client, queue)
    except PgqueError as error:
        yield HealthCheck(None, "connection", "critical", without_passwords(one_line(error)))


def _server(client: Client) -> Iterator[HealthCheck]:
    with client.transaction() as connection:
        row = connection.execute(_SERVER).fetchone()
        roles = [name for (name,) in connection.execute(_ROLES)]
    assert row is not None
    version, user, is_standby = row
    yield HealthCheck(None, "connection", "ok", f"PostgreSQL {version} as {user}")
    if is_standby:
        yield HealthCheck(
            None,
            "standby",
            "critical",
            "this server is a standby, which accepts no events and makes no ticks: connect to the"
            " primary, such as with target_session_attrs=primary",
        )
    yield HealthCheck(
        None,
        "roles",
        "ok" if roles else "warning",
        f"{user} has the rights of {', '.join(roles)}"
        if roles
        else f"{user} is in none of pgque_reader, pgque_writer and pgque_admin: grant pgque_writer"
        " to producers, pgque_reader to consumers, pgque_admin to the ticker's role",
    )


def _schema(url: str) -> HealthCheck:
    try:
        installer.check_version(url)
    except NewerInstalled as error:
        return HealthCheck(None, "schema", "warning", one_line(error))
    except (SchemaMissing, OlderInstalled) as error:
        return HealthCheck(None, "schema", "critical", one_line(error))
    return HealthCheck(None, "schema", "ok", f"version {version('pgque-dagster')}")


def _queues(client: Client, queue: str | None) -> Iterator[HealthCheck]:
    try:
        checks = client.health()
        if queue is not None and all(each.queue != queue for each in checks):
            missing = f"there is no queue {queue}: `pgque status` shows the existing ones"
            yield HealthCheck(queue, "queues", "critical", missing)
        yield from (each for each in checks if queue is None or each.queue in (None, queue))
    except PgqueError as error:
        yield HealthCheck(None, "queues", "critical", one_line(error))
