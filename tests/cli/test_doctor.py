"""`pgque doctor` says what keeps the queue from working, from the connection on."""

import json
from collections.abc import Callable

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgque_dagster import __version__, installer
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import Server
from tests.support.databases import as_user
from tests.support.queues import connect, make_queue, tick
from tests.support.released import RELEASES, Release
from tests.support.replicas import replicas, wait_for

Pgque = Callable[..., Result]


def doctor(url: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--url", url, "--json"])


def statuses(result: Result) -> dict[str, str]:
    return {check["check"]: check["status"] for check in json.loads(result.stdout)}


def details(result: Result) -> dict[str, str]:
    return {check["check"]: check["detail"] for check in json.loads(result.stdout)}


@pytest.mark.usefixtures("client")
def test_a_working_queue_is_well(pgque: Pgque) -> None:
    result = pgque("doctor", "--json")

    assert result.exit_code == 0
    found = statuses(result)
    assert {"connection", "roles", "schema", "lineage", "ticks", "health"} <= set(found)
    assert set(found.values()) == {"ok"}


def test_a_missing_schema_is_critical_and_all_that_is_said_of_the_queue(database_url: str) -> None:
    installer.uninstall(database_url, force=True)

    result = doctor(database_url)

    assert result.exit_code == 3
    assert set(statuses(result)) == {"connection", "roles", "settings", "schema"}
    assert statuses(result)["schema"] == "critical"
    assert details(result)["schema"].endswith("Run `pgque install`.")


@pytest.mark.parametrize("released", RELEASES, ids=lambda release: release.version)
def test_an_older_schema_is_critical_and_its_version_named(
    database_url: str, released: Release
) -> None:
    installer.uninstall(database_url, force=True)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(released.sql())

    result = doctor(database_url)

    assert result.exit_code == 3
    assert set(statuses(result)) == {"connection", "roles", "settings", "schema"}
    assert statuses(result)["schema"] == "critical"
    assert f"pgque {released.version}" in details(result)["schema"]
    assert details(result)["schema"].endswith("Run `pgque install`: queues and events stay.")


@pytest.mark.usefixtures("client")
def test_a_newer_schema_is_a_warning(pgque: Pgque, client: Client) -> None:
    with client.transaction() as connection:
        connection.execute(
            "create or replace function pgque.version() returns text language sql return '99.0.0'"
        )

    result = pgque("doctor", "--json")

    assert (result.exit_code, statuses(result)["schema"]) == (0, "warning")
    assert f"newer than this package's {__version__}" in details(result)["schema"]


def test_a_standby_is_critical_and_nothing_else_is(server: Server) -> None:
    with replicas(server) as servers:
        primary = servers.primary()
        with connect(primary.url()) as db:
            make_queue(db, "orders")
            tick(db, "orders")
        standby = servers.standby(primary)
        with connect(standby.url()) as db:
            wait_for(db, "select count(*) > 0 from pgque.tick")

        result = doctor(standby.url())

    assert result.exit_code == 3
    assert [name for name, status in statuses(result).items() if status == "critical"] == [
        "standby"
    ]
    assert "connect to the primary" in details(result)["standby"]
    assert {"schema", "health"} <= set(statuses(result))


def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    result = doctor("postgresql://me:secret@127.0.0.1:1/db")

    assert result.exit_code == 3
    assert statuses(result) == {"connection": "critical"}
    assert "secret" not in result.output


def test_a_role_without_rights_is_told_which_one_to_get(database_url: str) -> None:
    with Client(database_url) as client, client.transaction() as connection:
        connection.execute("create role newcomer login")
    try:
        result = doctor(as_user(database_url, "newcomer"))
    finally:
        with Client(database_url) as client, client.transaction() as connection:
            connection.execute("drop role newcomer")

    assert statuses(result)["roles"] == "warning"
