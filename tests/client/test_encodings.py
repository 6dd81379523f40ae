"""A client reads texts, dates and intervals whatever the encoding and styles of the database."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client import AsyncClient, Client, Consumer, MalformedPayload
from tests.client.consumer.support import Queue, run_until
from tests.conftest import Server, administer
from tests.support.queues import connect


@pytest.fixture
def ascii_url(server: Server) -> Iterator[str]:
    """A database that stores bytes of any encoding, with a queue and one event."""
    administer(server, "create database t_ascii encoding 'SQL_ASCII' locale 'C' template template0")
    url = server.database_url("t_ascii")
    installer.install(url)
    with connect(url) as db:
        db.make_queue()
        with Client(url) as client:
            client.send("q", {"name": "Zo\u00eb"}, type="order")
        db.tick()
    yield url
    administer(server, "drop database t_ascii with (force)")


def test_events_of_any_encoding_are_read_as_text(ascii_url: str) -> None:
    with Client(ascii_url) as client:
        batch = client.claim("q", "c", owner="me")
        assert batch is not None
        (message,) = batch.events()
        batch.release()
    assert (message.type, message.payload) == ("order", '{"name":"Zo\u00eb"}')

    async def read() -> str | None:
        async with AsyncClient(ascii_url) as client:
            again = await client.claim("q", "c", owner="me")
            assert again is not None
            (message,) = await again.events()
            await again.release()
            return message.payload

    assert asyncio.run(read()) == '{"name":"Zo\u00eb"}'
    consumer = Consumer(ascii_url, "q", "c")
    names: list[str] = []
    consumer.on("order")(lambda message: names.append(message.json()["name"]))
    run_until(consumer, lambda: names == ["Zo\u00eb"])

    # Bytes that are not UTF-8 are refused and stay in the queue.
    with psycopg.connect(ascii_url, client_encoding="latin1", autocommit=True) as other:
        other.execute("select pgque.send('q', '\u00e9')")
    with connect(ascii_url) as db:
        db.tick()
    with Client(ascii_url) as client:
        refused = client.claim("q", "c", owner="me")
        assert refused is not None
        with pytest.raises(MalformedPayload):
            refused.events()
        assert client.consumers("q")[0].pending_events == 1


STYLES = [
    ("SQL, DMY", "sql_standard"),
    ("German", "iso_8601"),
    ("Postgres, MDY", "postgres_verbose"),
]


@pytest.mark.parametrize(("date_style", "interval_style"), STYLES)
def test_dates_and_intervals_are_read_in_any_style(
    q: Queue, date_style: str, interval_style: str
) -> None:
    q.send("a")
    name = q.db.info.dbname
    q.db.execute(f"alter database {name} set datestyle to {date_style}".encode())
    q.db.execute(f"alter database {name} set intervalstyle to {interval_style}".encode())
    with psycopg.connect(q.url) as other:
        assert other.info.parameter_status("IntervalStyle") == interval_style
    at = datetime(2199, 2, 1, 12, tzinfo=UTC)
    with Client(q.url) as client:
        (stats,) = client.queue_stats()
        (found,) = client.consumers("q")
        assert stats.rotation_age < timedelta(hours=1)
        assert found.lag is not None and found.lag < timedelta(hours=1)
        assert client.health()
        client.send_at("q", "later", at)
        (entry,) = client.list_scheduled("q")
        assert entry.deliver_at == at

        batch = client.claim("q", "c", owner="me", ttl=timedelta(hours=1))
        assert batch is not None
        left = batch.lease.until - datetime.now(UTC)
        assert timedelta(minutes=50) < left < timedelta(minutes=70)
        assert batch.info().lag >= timedelta(0)
        assert [message.payload for message in batch.events()] == ["a"]
        batch.ack()
