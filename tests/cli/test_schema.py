"""Which database a command uses, and `pgque install` and `uninstall` in it."""

import re
import shlex
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import conninfo_to_dict

from pgque_dagster import __version__
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from tests.cli.conftest import Pgque, Refused
from tests.conftest import Server, new_server
from tests.support.queues.events import claim, publish
from tests.support.servers.databases import as_user, empty_database
from tests.support.servers.logins import as_login
from tests.support.servers.released import RELEASES


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


class TestDatabase:
    @pytest.mark.parametrize(
        "url",
        [
            "nonsense",
            "postgresql//user:secret@localhost/db",
            "postgresql://user:secret@[::1/db",
            "postgresql://user:my@secret@localhost/db",
            "postgresql://user:secret@127.0.0.1:1/db",
            "host=/nowhere password=secret",
        ],
    )
    def test_a_wrong_url_fails_in_one_line_without_its_password(self, url: str) -> None:
        result = run("--url", url, "status")
        assert result.exit_code == 1
        assert re.fullmatch(r"pgque: .+\n", result.stderr)
        assert "secret" not in result.stderr

    def test_a_url_in_the_place_of_a_queue_is_told_without_its_password(
        self, refused: Refused
    ) -> None:
        for url in ("postgresql://user:{}@host/db", "host=here password={} dbname=db"):
            assert url.format("***") in refused("drop-queue", url.format("secret"))

    @pytest.fixture
    def old_server(self) -> Iterator[str]:
        """URL of what says that it is PostgreSQL 13, and can say nothing else."""

        def message(kind: bytes, content: bytes) -> bytes:
            return kind + (len(content) + 4).to_bytes(4, "big") + content

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(
                    message(b"R", bytes(4))
                    + message(b"S", b"server_version\x0013.22\x00")
                    + message(b"S", b"client_encoding\x00UTF8\x00")
                    + message(b"Z", b"I")
                )
                connection.recv(10_000)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            port = listener.getsockname()[1]
            yield f"postgresql://user@127.0.0.1:{port}/db?sslmode=disable&gssencmode=disable"
            thread.join(10)

    def test_a_server_older_than_14_is_refused(self, old_server: str) -> None:
        result = run("--url", old_server, "status")
        assert result.exit_code == 1
        assert re.fullmatch(r"pgque: .*PostgreSQL 14 or newer.* 13.*\n", result.stderr)

    def test_it_is_named_by_an_option_or_by_the_environment(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGQUE_URL", "postgresql://127.0.0.1:1/elsewhere")
        for option in ("--url", "-d"):
            assert run("status", option, database_url).exit_code == 0
        assert run("--url", database_url, "status").exit_code == 0
        assert run("status").exit_code == 1
        monkeypatch.delenv("PGQUE_URL")
        parts = conninfo_to_dict(database_url)
        variables = {"host": "HOST", "port": "PORT", "dbname": "DATABASE", "user": "USER"}
        for name, variable in variables.items():
            monkeypatch.setenv(f"PG{variable}", str(parts[name]))
        result = run("status")
        assert (result.exit_code, result.stderr) == (0, "")

    def test_no_embedded_server_is_made_for_an_empty_variable_or_to_look_at_its_health(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for variable in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PGQUE_URL", "")
        monkeypatch.setenv("PGQUE_HOME", str(tmp_path))
        result = run("health")
        assert (result.exit_code, "PGQUE_URL is empty" in result.stderr) == (2, True)
        monkeypatch.delenv("PGQUE_URL")
        result = run("health")
        assert (result.exit_code, "no database is named" in result.stderr) == (2, True)
        assert not list(tmp_path.iterdir())

    def test_without_one_the_embedded_server_of_the_folder_is_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable in ("PGQUE_URL", "PGQUE_HOME"):
            monkeypatch.delenv(variable, raising=False)
        # Not tmp_path: pytest closes its parent folder to every other user, also to the server's.
        with tempfile.TemporaryDirectory(prefix="walk-") as path:
            folder = Path(path).resolve()
            (folder / "src").mkdir()
            monkeypatch.chdir(folder)
            first, *others = walk()
            said = {first: run(*shlex.split(first)[1:])}
            # Held, so that it does not start for each command.
            with EmbeddedPostgres(folder / ".pgque" / "postgres-18"):
                said |= {command: run(*shlex.split(command)[1:]) for command in others}
                check_walk(said)
                monkeypatch.chdir(folder / "src")
                found = run("status")
                assert "orders" in found.stdout
                assert f"using the embedded PostgreSQL in {folder}/.pgque" in found.stderr
            assert f"made an embedded PostgreSQL in {folder}/.pgque" in said[first].stderr
            assert "PGQUE_HOME" in said[first].stderr
            assert not (folder / "src" / ".pgque").exists()
            monkeypatch.chdir("/")


def walk() -> list[str]:
    """The commands of the first walk that `pgque --help` shows, in their order."""
    lines = run("--help").output.partition("First steps:\n")[2].partition("\n\n")[0].splitlines()
    return [line.strip() for line in lines]


def check_walk(said: dict[str, Result]) -> None:
    """Checks what the commands said: the event is ticked, and waits for its consumer."""
    assert {result.exit_code for result in said.values()} == {0}
    (ticked,) = (result for command, result in said.items() if command[:12] == "pgque ticker")
    assert ticked.stdout == "queues ticked: 1\n"
    status = said["pgque status"].stdout.splitlines()
    (billing,) = (line for line in status if "billing" in line)
    assert billing.split()[:3] == ["orders", "billing", "1"]


class TestInstalling:
    @pytest.fixture
    def empty(self, server: Server) -> Iterator[str]:
        with empty_database(server) as url:
            yield url

    def test_install_works_once_and_again(self, empty: str) -> None:
        for command in (["status"], ["ticker"], ["send", "orders", "{}"]):
            result = run("--url", empty, *command)
            assert result.exit_code == 1
            assert re.fullmatch(r"pgque: .*Run `pgque install`\.\n", result.stderr)
        assert run("--url", empty, "install").output == f"installed pgque {__version__}\n"
        assert run("--url", empty, "create-queue", "orders").exit_code == 0
        assert "nothing was lost" in run("--url", empty, "install").output
        assert "orders" in run("--url", empty, "status").output

    def test_an_administrator_is_asked_once_for_all_roles(self) -> None:
        with new_server() as server, psycopg.connect(server.url, autocommit=True) as administrator:
            administrator.execute("create role plain login")
            administrator.execute("create database shop owner plain")
            plain = as_user(server.database_url("shop"), "plain")
            install = ["install", "--with", "qgres", "--with", "postgremq", "--with", "pgq"]
            said = run("--url", plain, *install).stderr
            assert "pgque was not installed" in said and "Nothing was changed" in said
            asked = re.search(r"run once: (.*); then install again", said)
            assert asked is not None
            administrator.execute("create role pgque_reader nologin")
            said = run("--url", plain, *install).stderr
            assert "create role pgque_writer" in said and "role pgque_reader" not in said

            statements = [each for each in asked[1].split("; ") if "role pgque_reader" not in each]
            roles = [each for each in statements if "qgres" not in each]
            for statement in roles:
                administrator.execute(statement.encode())
            said = run("--url", plain, *install).stderr
            assert "pgque is installed, without qgres" in said
            assert "create role qgres__queue_delete" in said and "pgq_reader" not in said
            for statement in set(statements) - set(roles):
                administrator.execute(statement.encode())
            assert "with pgq, postgremq, qgres" in run("--url", plain, *install).output

    def test_an_older_schema_is_upgraded_and_the_versions_are_named(self, empty: str) -> None:
        oldest = RELEASES[0]
        with psycopg.connect(empty, autocommit=True) as connection:
            connection.execute(oldest.sql())
        upgraded = run("--url", empty, "install").output
        assert upgraded == f"upgraded pgque from {oldest.version} to {__version__}\n"
        assert run("--url", empty, "uninstall").exit_code == 0

    def test_an_older_package_does_not_touch_a_newer_schema(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        with client.transaction() as connection:
            connection.execute("update pgque.config set schema_version = '99.0.0'")
        assert "pgque 99.0.0 is installed" in refused("install")

    def test_uninstall_asks_for_force_while_events_are_unread(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        client.send("orders", "{}")
        line = refused("uninstall")
        assert '"orders"' in line
        assert "`pgque uninstall --force`, which removes all queues and add-ons with their" in line
        assert client.queue_stats() != []
        assert pgque("uninstall", "--force").exit_code == 0
        assert "no pgque schema" in refused("status")
        assert "no pgque schema" in refused("uninstall", "--force")

    def test_who_does_not_own_the_schema_is_told_who_does(
        self, client: Client, database_url: str
    ) -> None:
        for command in ("uninstall", "install"):
            for roles in ((), ("pgque_admin",)):
                said = run("--url", as_login(database_url, *roles), command).stderr
                assert "Only the schema's owner may do this: log in as postgres" in said

    def test_uninstall_needs_no_force_when_all_is_read(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        publish(client, ["{}"])
        claim(client, consumer="billing").ack()
        assert pgque("uninstall").output == "removed pgque; its roles are kept\n"
        assert "no pgque schema" in refused("status")

    def test_with_an_addon_the_advice_is_to_remove_that_addon_alone(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        pgque("install", "--with", "qgres", "--with", "postgremq")
        with client.transaction() as db:
            db.execute("select qgres.queue__create('journal', 'SP')")
            db.execute("select qgres.consumer__register('journal', 'reader')")
            db.execute("select qgres.\"Publish\"('journal'::text, 'tea'::text)")
            db.execute("select postgremq.create_topic('mail')")
            db.execute("select postgremq.create_queue('welcome', 'mail')")
            db.execute("select postgremq.publish_message('mail', '{}')")

        for addon in ("qgres", "postgremq"):
            line = refused("uninstall", "--addon", addon)
            command = f"uninstall --addon {addon} --force"
            assert f"or run `pgque {command}`, which loses them." in line
            assert "uninstall --force" not in line
            assert pgque(*command.split()).exit_code == 0
            assert client.queue_stats() != []
        assert "pgque uninstall --addon qgres --force" in pgque("uninstall", "--help").output
