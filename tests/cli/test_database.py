"""Which database a command uses, and what it says when it cannot."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main


def queues_of(url: str) -> Result:
    return CliRunner().invoke(main, ["--url", url, "queues"])


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "postgresql//user:secret@localhost/db",
        "postgresql://user:secret@[::1/db",
        "postgresql://user:my@secret@localhost/db",
        "postgresql://user:secret@localhost/db?no_such_option=1",
        "postgresql://user:secret@127.0.0.1:port/db",
        "postgresql://user:secret@127.0.0.1:1/db",
        "postgresql://user:secret@host.invalid/db",
        "host=/nowhere password=secret",
    ],
)
def test_a_wrong_url_fails_in_one_line_without_its_password(url: str) -> None:
    result = queues_of(url)

    assert result.exit_code == 1
    assert re.fullmatch(r"pgque: .+\n", result.stderr)
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("host=here password=secret dbname=db", "host=here password=*** dbname=db"),
    ],
)
def test_a_url_in_the_place_of_a_queue_is_told_without_its_password(
    database_url: str, url: str, shown: str
) -> None:
    result = CliRunner().invoke(main, ["--url", database_url, "drop-queue", url])

    assert result.exit_code == 1
    assert shown in result.stderr
    assert "secret" not in result.stderr


@pytest.fixture
def old_server() -> Iterator[str]:
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


def test_a_server_older_than_14_is_refused(old_server: str) -> None:
    result = queues_of(old_server)

    assert result.exit_code == 1
    assert re.fullmatch(r"pgque: .*PostgreSQL 14 or newer.* 13.*\n", result.stderr)


def test_a_database_that_does_not_exist_is_named(database_url: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]

    result = queues_of(psycopg.conninfo.make_conninfo(database_url, dbname=f"{name}_nope"))

    assert result.exit_code == 1
    assert f'"{name}_nope"' in result.stderr


def test_the_option_wins_over_the_environment(database_url: str) -> None:
    environment = {"PGQUE_URL": "postgresql://127.0.0.1:1/elsewhere"}

    result = CliRunner().invoke(main, ["--url", database_url, "queues"], env=environment)

    assert result.exit_code == 0


def test_without_a_url_the_embedded_server_of_the_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGQUE_URL", raising=False)
    monkeypatch.setenv("PGQUE_HOME", str(tmp_path))

    installed = CliRunner().invoke(main, ["install"])
    created = CliRunner().invoke(main, ["create-queue", "orders"])

    assert installed.exit_code == 0
    assert created.stdout == "created queue orders\n"
    assert str(tmp_path) in created.stderr


def test_help_needs_no_database_and_shows_examples() -> None:
    for command in main.commands.values():
        result = CliRunner().invoke(main, [command.name or "", "--help"], env={"PGQUE_URL": "none"})

        assert result.exit_code == 0
        assert "Examples:" in result.output
