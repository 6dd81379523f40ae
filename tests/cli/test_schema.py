"""`pgque install`, `uninstall` and `version`, and a database without the schema."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from pgque_dagster import __version__
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.conftest import Server, administer

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


def test_uninstall_asks_for_force(pgque: Pgque, refused: Refused, client: Client) -> None:
    assert "--force" in refused("uninstall")
    assert client.queues() != []

    assert pgque("uninstall", "--force").exit_code == 0
    assert "not installed" in pgque("version").output


def test_uninstall_of_nothing_is_refused(pgque: Pgque, refused: Refused) -> None:
    pgque("uninstall", "--force")

    assert "no pgque schema" in refused("uninstall", "--force")


def test_version_names_package_and_schema(pgque: Pgque) -> None:
    assert pgque("version").output == f"package {__version__}\nschema  {__version__}\n"
