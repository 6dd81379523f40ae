"""`pgque health` says what keeps the queue from working, from the connection on."""

import json

import psycopg
import pytest
from click.testing import CliRunner

from pgque_dagster import __version__, installer
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.support.queues.sql import connect, make_queue, tick
from tests.support.servers.logins import as_login
from tests.support.servers.released import RELEASES, Release
from tests.support.servers.standbys import replicas, wait_for

OF_THE_DATABASE = {"connection", "roles", "schema"}


def health(url: str) -> tuple[int, dict[str, str], dict[str, str]]:
    """How it ends, and the status and the detail of each check."""
    result = CliRunner().invoke(main, ["health", "--all", "--url", url, "--json"])
    assert "secret" not in result.output
    checks = json.loads(result.stdout)
    statuses, details = ({c["check"]: c[key] for c in checks} for key in ("status", "detail"))
    return result.exit_code, statuses, details


def test_a_working_queue_is_well_also_under_a_newer_schema(
    client: Client, database_url: str
) -> None:
    code, statuses, _ = health(database_url)
    assert code == 0
    assert {*OF_THE_DATABASE, "ticker_running"} <= set(statuses)
    assert set(statuses.values()) == {"ok"}

    with client.transaction() as connection:
        connection.execute(
            "create or replace function pgque.version() returns text language sql return '99.0.0'"
        )
    code, statuses, details = health(database_url)
    assert (code, statuses["schema"]) == (0, "warning")
    assert f"newer than this package's {__version__}" in details["schema"]


def test_a_missing_schema_is_critical_and_all_that_is_said_of_the_queue(database_url: str) -> None:
    installer.uninstall(database_url, force=True)
    code, statuses, details = health(database_url)
    assert (code, set(statuses), statuses["schema"]) == (3, OF_THE_DATABASE, "critical")
    assert details["schema"].endswith("Run `pgque install`.")


@pytest.mark.parametrize("released", RELEASES, ids=lambda release: release.version)
def test_an_older_schema_is_critical_and_its_version_named(
    database_url: str, released: Release
) -> None:
    installer.uninstall(database_url, force=True)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(released.sql())
    code, statuses, details = health(database_url)
    assert (code, set(statuses), statuses["schema"]) == (3, OF_THE_DATABASE, "critical")
    assert f"pgque {released.version}" in details["schema"]
    assert details["schema"].endswith("Run `pgque install`: queues and events stay.")


def test_a_standby_is_critical_and_nothing_else_is() -> None:
    with replicas() as servers:
        primary = servers.primary()
        with connect(primary.url) as db:
            make_queue(db, "orders")
            tick(db, "orders")
        standby = servers.standby(primary)
        with connect(standby.url) as db:
            wait_for(db, "select count(*) > 0 from pgque.tick")
        code, statuses, details = health(standby.url)

    assert code == 3
    assert [name for name, status in statuses.items() if status == "critical"] == ["standby"]
    assert "connect to the primary" in details["standby"]
    assert {"schema", "ticker_running"} <= set(statuses)


def test_who_cannot_connect_or_has_no_rights_is_told_so(database_url: str) -> None:
    code, statuses, _ = health("postgresql://me:secret@127.0.0.1:1/db")
    assert (code, statuses) == (3, {"connection": "critical"})
    _, statuses, _ = health(as_login(database_url))
    assert statuses["roles"] == "warning"


def test_who_owns_the_schema_without_a_role_is_not_warned(database_url: str) -> None:
    login = as_login(database_url)
    with connect(database_url) as db:
        db.execute("alter schema pgque owner to login")
    _, statuses, details = health(login)
    assert statuses["roles"] == "ok"
    assert "the owner of schema pgque" in details["roles"]
