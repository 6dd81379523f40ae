"""What is wrong with a connection is said in one line by clients and consumers, without secrets."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    Consumer,
    PermissionDenied,
    PgqueError,
    QueueNotFound,
    SchemaMissing,
)
from tests.support.logins import as_login
from tests.support.queues import Connection, connect, make_queue, value

PASSWORD = "not-this-one"


def use_client(url: str) -> None:
    with Client(url) as client:
        client.receive("q", "c")


def use_async_client(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            await client.receive("q", "c")

    asyncio.run(main())


def use_consumer(url: str) -> None:
    consumer = Consumer(url, "q", "c")
    consumer.on()(print)
    consumer.run()


USES = [use_client, use_async_client, use_consumer]
Use = Callable[[str], None]


def refusal(use: Use, url: str, expected: type[PgqueError]) -> str:
    with pytest.raises(expected) as caught:
        use(url)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def url_with_wrong_password(server: Any, database_url: str) -> Iterator[str]:
    with connect(server.url) as db:
        db.execute("create role guarded login password 'the right one'")
        rules = Path(value(db, "show hba_file"))
        before = rules.read_text()
        rules.write_text(f"local all guarded scram-sha-256\n{before}")
        value(db, "select pg_reload_conf()")
    yield psycopg.conninfo.make_conninfo(database_url, user="guarded", password=PASSWORD)
    with connect(server.url) as db:
        rules.write_text(before)
        value(db, "select pg_reload_conf()")
        db.execute("drop role guarded")


@pytest.mark.parametrize("use", USES)
def test_a_wrong_password_is_refused_and_not_shown(use: Use, url_with_wrong_password: str) -> None:
    message = refusal(use, url_with_wrong_password, ConnectionFailed)
    assert "password authentication failed" in message
    assert PASSWORD not in message


@pytest.mark.parametrize("use", USES)
def test_a_password_is_not_in_the_traceback(
    use: Use, url_with_wrong_password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        use(url_with_wrong_password)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in str(error) + repr(error)
        error = error.__cause__ or error.__context__
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("use", USES)
def test_a_database_that_is_not_there_is_named(use: Use, server: Any) -> None:
    assert "nosuchdb" in refusal(use, server.database_url("nosuchdb"), ConnectionFailed)


@pytest.mark.parametrize("use", USES)
def test_a_missing_schema_says_how_to_install_it(use: Use, server: Any) -> None:
    assert "pgque install" in refusal(use, server.url, SchemaMissing)


@pytest.mark.parametrize("use", USES)
def test_a_schema_that_is_too_old_says_how_to_install_it(
    use: Use, database_url: str, db: Connection
) -> None:
    make_queue(db)
    db.execute("drop function pgque.next_batch_custom(text, text, interval, int4, interval, int4)")
    db.execute("drop function pgque.claim_batch cascade")
    assert "pgque install" in refusal(use, database_url, SchemaMissing)


@pytest.mark.parametrize("use", USES)
def test_missing_rights_name_the_role_to_grant(use: Use, database_url: str) -> None:
    assert "grant pgque_reader to" in refusal(use, as_login(database_url), PermissionDenied)


@pytest.mark.parametrize("use", USES)
def test_an_unknown_queue_suggests_near_names(use: Use, database_url: str, db: Connection) -> None:
    make_queue(db, "qq")
    assert "Did you mean qq?" in refusal(use, database_url, QueueNotFound)
