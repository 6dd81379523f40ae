"""A client that cannot connect says why in one line."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from pgque_dagster import installer
from pgque_dagster.client import AsyncClient, Client, ConnectionFailed, SchemaMissing, Ticker
from tests.support.queues import PATIENCE_SECONDS, connect, value

CONNECTORS = [Client, installer.installed_version, installer.install, installer.uninstall]


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://somebody@127.0.0.1:1/db", "127.0.0.1"),
        ("host=/nonexistent dbname=x", "/nonexistent"),
        ("postgresql://nowhere.invalid/db", "nowhere.invalid"),
        ("not a url", "not valid"),
        ("postgresql://u@/x?nosuch=1", "not valid"),
        ("postgresql://u:p@ss@host/x", "more than one @"),
        ("postgresql://u@host:port/x", "port"),
    ],
)
def test_a_wrong_url_is_one_line_that_names_it(
    connector: Callable[[str], Any], url: str, word: str
) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        connector(url)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_lines_of_a_refused_connection_become_sentences() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        Client("postgresql://somebody@127.0.0.1:1/db")
    assert str(caught.value).endswith(
        "Connection refused. Is the server running on that host and accepting TCP/IP connections? "
        "Check that the server runs and the connection string names it."
    )


@pytest.mark.parametrize("url", ["postgres//u:secret@host/x", "postgresql://u:secret@@host/x"])
def test_a_wrong_url_does_not_give_its_password_away(url: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_an_unknown_database_is_named(server: Any) -> None:
    with pytest.raises(ConnectionFailed, match="nosuchdb") as caught:
        Client(server.database_url("nosuchdb"))
    assert "\n" not in str(caught.value)


def test_an_unknown_user_is_named(server: Any) -> None:
    with pytest.raises(ConnectionFailed, match="nosuchuser"):
        Client(re.sub("//postgres(:[^@]*)?@", "//nosuchuser@", server.url))


def test_a_database_without_the_schema_says_how_to_install_it(server: Any) -> None:
    with Client(server.url) as client, pytest.raises(SchemaMissing, match="pgque install"):
        client.version()


def test_a_ticker_on_a_database_without_the_schema_gives_up(server: Any) -> None:
    with pytest.raises(SchemaMissing):
        Ticker(server.url).run()


def test_there_is_no_version_where_nothing_is_installed(server: Any) -> None:
    assert installer.installed_version(server.url) is None


def test_uninstalling_where_nothing_is_says_so(server: Any) -> None:
    with pytest.raises(SchemaMissing):
        installer.uninstall(server.url)


def test_the_installer_installs_once(server: Any) -> None:
    with connect(server.url) as db:
        db.execute("create database installing")
    url = server.database_url("installing")
    try:
        done = [installer.install_if_missing(url) for _ in range(2)]
        with Client(url) as client:
            version = client.version()
        assert (done, installer.installed_version(url)) == ([True, False], version)
        installer.uninstall(url)
        assert installer.installed_version(url) is None
    finally:
        with connect(server.url) as db:
            db.execute("drop database installing with (force)")


def test_a_closed_client_closes_its_session(database_url: str) -> None:
    with Client(database_url):
        pass
    with connect(database_url) as db:
        sql = "select count(*) from pg_stat_activity where datname = current_database()"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (sessions := value(db, sql)) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sessions == 1


def test_a_closed_client_says_that_it_was_closed(database_url: str) -> None:
    told = "this client was closed. Use it within its `with` block."
    with Client(database_url) as client:
        pass
    uses: list[Callable[[], object]] = [client.queues, client.messages.queues, lambda: client.user]
    for use in uses:
        with pytest.raises(ConnectionFailed) as caught:
            use()
        assert str(caught.value) == told
    with pytest.raises(ConnectionFailed) as caught, client.transaction():
        pass
    assert str(caught.value) == told

    async def use_late() -> None:
        async with AsyncClient(database_url) as late:
            pass
        await late.queues()

    with pytest.raises(ConnectionFailed) as caught:
        asyncio.run(use_late())
    assert str(caught.value) == told
