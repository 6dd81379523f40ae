"""`pgque install`, `uninstall` and `version`, and a database without the schema."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgque_dagster import __version__
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import Server, administer
from tests.support.released import RELEASES

Pgque = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture
def empty_database(server: Server) -> Iterator[str]:
    administer(server, "create database without_pgque")
    yield server.database_url("without_pgque")
    administer(server, "drop database without_pgque with (force)")


def test_install_works_once_and_again(empty_database: str) -> None:
    def pgque(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["--url", empty_database, *arguments])

    assert pgque("install").output == f"installed pgque {__version__}\n"
    assert pgque("create-queue", "orders").exit_code == 0
    assert "nothing was lost" in pgque("install").output
    assert "orders" in pgque("queues").output


def test_a_database_without_the_schema_says_how_to_install_it(empty_database: str) -> None:
    for command in (["queues"], ["ticker"], ["send", "orders", "{}"]):
        result = CliRunner().invoke(main, ["--url", empty_database, *command])

        assert result.exit_code == 1
        assert result.stderr.startswith("pgque: ")
        assert result.stderr.endswith("Run `pgque install`.\n")
        assert result.stderr.count("\n") == 1


def test_uninstall_asks_for_force_while_events_are_unread(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    client.send("orders", "{}")

    line = refused("uninstall")
    assert '"orders"' in line
    assert "`pgque uninstall --force`, which removes all queues and add-ons with their" in line
    assert client.queues() != []

    assert pgque("uninstall", "--force").exit_code == 0
    assert "not installed" in pgque("version").output


def test_with_an_addon_the_advice_is_to_remove_that_addon_alone(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    pgque("install", "--with", "qgres", "--with", "postgremq")
    client.serial.create("journal", "SP")
    client.serial.register("journal", "reader")
    client.serial.publish("journal", text="tea")
    client.messages.create_topic("mail")
    client.messages.create_queue("welcome", "mail")
    client.messages.publish("mail", {})

    for addon in ("qgres", "postgremq"):
        line = refused("uninstall", "--addon", addon)
        command = f"uninstall --addon {addon} --force"
        assert f"or run `pgque {command}`, which loses them." in line
        assert "uninstall --force" not in line

        assert pgque(*command.split()).exit_code == 0
        assert client.queues() != []


def test_the_help_of_uninstall_shows_how_to_remove_an_addon_with_unread_entries(
    pgque: Pgque,
) -> None:
    assert "pgque uninstall --addon qgres --force" in pgque("uninstall", "--help").output


def test_uninstall_needs_no_force_when_all_is_read(pgque: Pgque, client: Client) -> None:
    client.send("orders", "{}")
    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    batch.ack()

    assert pgque("uninstall").output == "removed pgque; its roles are kept\n"
    assert "not installed" in pgque("version").output


def test_an_older_schema_is_upgraded_and_the_versions_are_named(empty_database: str) -> None:
    oldest = RELEASES[0]
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(oldest.sql())

    def pgque(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["--url", empty_database, *arguments])

    assert "pgque install" in pgque("uninstall").stderr
    assert (
        pgque("install").output == f"upgraded pgque from {RELEASES[0].version} to {__version__}\n"
    )
    assert pgque("uninstall").exit_code == 0


def test_an_older_package_does_not_touch_a_newer_schema(
    pgque: Pgque, refused: Refused, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update pgque.config set schema_version = '99.0.0'")

    assert "pgque 99.0.0 is installed" in refused("install")


def test_uninstall_of_nothing_is_refused(pgque: Pgque, refused: Refused) -> None:
    pgque("uninstall", "--force")

    assert "no pgque schema" in refused("uninstall", "--force")


def test_version_names_package_and_schema(pgque: Pgque) -> None:
    assert pgque("version").output == f"package {__version__}\nschema  {__version__}\n"
