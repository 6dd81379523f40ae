"""Databases with the encoding SQL_ASCII, which store bytes of any encoding."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client import AsyncClient, Client, Consumer, MalformedPayload
from tests.conftest import Server, administer
from tests.support.queues import connect, make_queue, tick


@pytest.fixture
def ascii_url(server: Server) -> Iterator[str]:
    """URL of a database with a queue `q`, its consumer `c` and one event."""
    administer(
        server,
        "create database t_ascii encoding 'SQL_ASCII' locale 'C' template template0",
    )
    url = server.database_url("t_ascii")
    installer.install(url)
    with connect(url) as db:
        make_queue(db)
        with Client(url) as client:
            client.send("q", {"name": "Zo\u00eb"}, type="order")
        tick(db)
    yield url
    administer(server, "drop database t_ascii with (force)")


def test_events_are_read_as_text(ascii_url: str) -> None:
    with Client(ascii_url) as client:
        received = client.receive("q", "c")
    assert received is not None
    (message,) = received.messages
    assert (message.type, message.payload) == ("order", '{"name":"Zo\u00eb"}')


def test_events_are_read_as_text_with_asyncio(ascii_url: str) -> None:
    async def main() -> str | None:
        async with AsyncClient(ascii_url) as client:
            received = await client.receive("q", "c")
            assert received is not None
            return received.messages[0].payload

    assert asyncio.run(main()) == '{"name":"Zo\u00eb"}'


def test_a_consumer_finds_the_handler_of_a_type(ascii_url: str) -> None:
    consumer = Consumer(ascii_url, "q", "c")
    names = []

    @consumer.on("order")
    def handle(message):  # type: ignore[no-untyped-def]
        names.append(message.json()["name"])
        consumer.stop()

    consumer.run()
    assert names == ["Zo\u00eb"]


def test_bytes_that_are_not_utf8_are_refused_and_stay_in_the_queue(ascii_url: str) -> None:
    with psycopg.connect(ascii_url, client_encoding="latin1", autocommit=True) as other:
        other.execute("select pgque.send('q', '\u00e9')")
    with connect(ascii_url) as db:
        tick(db)
    with Client(ascii_url) as client:
        first = client.receive("q", "c")
        assert first is not None
        client.finish_batch(first.batch_id)
        with pytest.raises(MalformedPayload):
            client.receive("q", "c")
        assert client.consumers("q")[0].pending_events == 1
