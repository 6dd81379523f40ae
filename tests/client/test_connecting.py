"""What is wrong with a connection is said in one line by clients and consumers, without secrets."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Any

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    Consumer,
    PermissionDenied,
    PgqueError,
    QueueNotFound,
    SchemaMissing,
    Ticker,
)
from tests.client.consumer.support import Queue
from tests.support.queues.sql import connect
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import as_user, empty_database
from tests.support.servers.logins import as_login

END_ALL_SESSIONS = (
    "select pg_terminate_backend(pid, 60000) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)
PASSWORD = "not-this-one"
CONNECTORS: list[Callable[[str], Any]] = [
    Client,
    installer.installed_version,
    installer.install,
    installer.uninstall,
]


def use_client(url: str) -> None:
    with Client(url) as client:
        client.claim("q", "c", owner="me")


def use_async_client(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            await client.claim("q", "c", owner="me")

    asyncio.run(main())


def use_consumer(url: str) -> None:
    consumer = Consumer(url, "q", "c")
    consumer.on()(print)
    consumer.run()


Use = Callable[[str], None]


@pytest.fixture(params=[use_client, use_async_client, use_consumer])
def use(request: pytest.FixtureRequest) -> Use:
    found: Use = request.param
    return found


def refusal(use: Callable[[str], Any], url: str, expected: type[PgqueError]) -> str:
    """The one line with which it fails; the password is nowhere in the errors."""
    with pytest.raises(expected) as caught:
        use(url)
    assert "\n" not in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in str(error) + repr(error)
        error = error.__cause__ or error.__context__
    return str(caught.value)


@pytest.fixture
def url_with_wrong_password(server: Any, database_url: str) -> Iterator[str]:
    with connect(server.url) as db:
        db.execute("create role guarded login password 'the right one'")
        rules = Path(db.value("show hba_file"))
        before = rules.read_text()
        rules.write_text(f"local all guarded scram-sha-256\n{before}")
        db.value("select pg_reload_conf()")
        yield psycopg.conninfo.make_conninfo(database_url, user="guarded", password=PASSWORD)
        rules.write_text(before)
        db.value("select pg_reload_conf()")
        db.execute("drop role guarded")


def test_a_wrong_password_is_refused_and_not_shown(
    use: Use, url_with_wrong_password: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = refusal(use, url_with_wrong_password, ConnectionFailed)
    assert "password authentication failed" in message
    assert "Correct the password" in message
    assert PASSWORD not in caplog.text


def test_what_a_user_or_database_lacks_is_named(use: Use, server: Any, q: Queue) -> None:
    assert "nosuchdb" in refusal(use, server.database_url("nosuchdb"), ConnectionFailed)
    assert "nosuchuser" in refusal(use, as_user(q.url, "nosuchuser"), ConnectionFailed)
    assert "grant pgque_reader to" in refusal(use, as_login(q.url), PermissionDenied)
    assert "pgque install" in refusal(use, server.url, SchemaMissing)
    # A schema that is too old.
    custom = "next_batch_custom(text, text, interval, int4, interval, int4)"
    q.db.execute(f"drop function pgque.{custom}")
    q.db.execute("drop function pgque.claim_batch cascade")
    assert "pgque install" in refusal(use, q.url, SchemaMissing)


def test_an_unknown_queue_suggests_near_names(client: Client) -> None:
    client.create_queue("orders")
    client.create_queue("invoices")
    for name in ("order", "Orders", "ordres"):
        with pytest.raises(QueueNotFound, match=r"Did you mean orders\?"):
            client.send(name, "x")
    with pytest.raises(QueueNotFound) as far:
        client.send("xyz", "x")
    assert "Did you mean" not in str(far.value)


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize(
    ("url", "word"),
    [
        (f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/db", "127.0.0.1"),
        (f"host=/nonexistent dbname=x password={PASSWORD}", "/nonexistent"),
        (f"postgresql://u:{PASSWORD}@nowhere.invalid/db", "nowhere.invalid"),
        ("not a url", "not valid"),
        (f"postgresql://u:{PASSWORD}@/x?nosuch=1", "not valid"),
        (f"postgres//u:{PASSWORD}@host/x", "not valid"),
        ("postgresql://u:p@ss@host/x", "more than one @"),
        (f"postgresql://u:{PASSWORD}@@host/x", "more than one @"),
        (f"postgresql://u:{PASSWORD}@host:port/x", "port"),
    ],
)
def test_a_wrong_url_is_one_line_that_names_it(
    connector: Callable[[str], Any], url: str, word: str
) -> None:
    assert word in refusal(connector, url, ConnectionFailed)


def test_the_lines_of_a_refused_connection_become_sentences() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        Client("postgresql://somebody@127.0.0.1:1/db")
    assert str(caught.value).endswith(
        "Connection refused. Is the server running on that host and accepting TCP/IP connections? "
        "Check that the server runs and the connection string names it."
    )


def test_the_installer_installs_once(server: Any) -> None:
    with empty_database(server) as url:
        assert installer.installed_version(url) is None
        for use in (installer.uninstall, lambda url: Ticker(url).run()):
            with pytest.raises(SchemaMissing):
                use(url)
        assert [installer.install_if_missing(url) for _ in range(2)] == [True, False]
        with Client(url) as client:
            assert installer.installed_version(url) == client.version()
        installer.uninstall(url)
        assert installer.installed_version(url) is None


def test_a_closed_client_closes_its_session_and_says_so(client: Client, database_url: str) -> None:
    told = re.escape("this client was closed. Use it within its `with` block.")
    client.close()
    with connect(database_url) as db:
        sql = "select count(*) from pg_stat_activity where datname = current_database()"
        wait_until(lambda: db.value(sql) == 1)

    async def use_late() -> None:
        async with AsyncClient(database_url) as late:
            pass
        await late.queue_stats()

    uses: list[Callable[[], object]] = [
        client.queue_stats,
        lambda: client.user,
        lambda: client.transaction().__enter__(),
        lambda: asyncio.run(use_late()),
    ]
    for use in uses:
        with pytest.raises(ConnectionFailed, match=f"^{told}$"):
            use()


def test_a_client_connects_again_after_its_session_was_ended(q: Queue) -> None:
    def ended(use: Callable[[], object]) -> None:
        q.db.rows(END_ALL_SESSIONS)
        with pytest.raises(ConnectionFailed, match="connects again"):
            use()

    async def use_async() -> None:
        async with AsyncClient(q.url) as client:
            q.db.rows(END_ALL_SESSIONS)
            with pytest.raises(ConnectionFailed, match="connects again"):
                await client.send("q", "lost")
            await client.send("q", "b")

    ended(lambda: q.client.send("q", "lost"))
    q.client.send("q", "a")
    with pytest.raises(ConnectionFailed), q.client.transaction():
        q.client.send("q", "lost")
        ended(lambda: q.client.send("q", "lost"))
        # Not on another connection, in half of the transaction.
        q.client.send("q", "lost")
    asyncio.run(use_async())
    with psycopg.connect(q.url) as given:
        ended(Client(given).version)
        with pytest.raises(ConnectionFailed, match="that you gave to it has to be replaced"):
            Client(given).version()
    assert q.sent() == ["a", "b"]


def test_an_asynchronous_client_that_is_not_open_says_what_to_do() -> None:
    with pytest.raises(Exception, match="async with AsyncClient"):
        asyncio.run(AsyncClient("dbname=x").version())


def test_without_a_second_free_descriptor_it_is_an_error_that_passes(q: Queue) -> None:
    limits, first = getrlimit(RLIMIT_NOFILE), os.dup(0)
    os.close(first)
    setrlimit(RLIMIT_NOFILE, (first + 1, limits[1]))
    try:
        with pytest.raises(ConnectionFailed, match="Too many open files"):
            Client(q.url)
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
