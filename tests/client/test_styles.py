"""A client reads dates and intervals whatever style the database prints them in."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.pool import ClientPool
from tests.support.queues import connect, make_queue, send, tick

STYLES = [
    ("SQL, DMY", "sql_standard"),
    ("German", "iso_8601"),
    ("Postgres, MDY", "postgres_verbose"),
]


@pytest.fixture(params=STYLES, ids=lambda styles: styles[1])
def styled_url(database_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with other styles, a queue and an event."""
    date_style, interval_style = request.param
    with connect(database_url) as db:
        make_queue(db)
        send(db, "a")
        tick(db)
        name = db.info.dbname
        db.execute(f"alter database {name} set datestyle to {date_style}".encode())
        db.execute(f"alter database {name} set intervalstyle to {interval_style}".encode())
    with psycopg.connect(database_url) as other:
        assert other.info.parameter_status("IntervalStyle") == interval_style
    yield database_url


def consume(client: Client) -> list[str | None]:
    batch = client.claim("q", "c", owner="me", ttl=timedelta(hours=1))
    assert batch is not None
    left = batch.lease.until - datetime.now(UTC)
    assert timedelta(minutes=50) < left < timedelta(minutes=70)
    assert batch.info().lag >= timedelta(0)
    payloads = [message.payload for message in batch.events()]
    batch.ack()
    return payloads


def test_a_batch_is_claimed_and_acked(styled_url: str) -> None:
    with Client(styled_url) as client:
        assert consume(client) == ["a"]


def test_statistics_are_read(styled_url: str) -> None:
    with Client(styled_url) as client:
        (stats,) = client.queue_stats()
        (consumer,) = client.consumers("q")
        assert stats.rotation_age < timedelta(hours=1)
        assert consumer.lag is not None and consumer.lag < timedelta(hours=1)
        assert client.health()


def test_an_event_is_scheduled_for_the_time_that_was_given(styled_url: str) -> None:
    at = datetime(2199, 2, 1, 12, tzinfo=UTC)
    with Client(styled_url) as client:
        client.send_at("q", "later", at)
        (entry,) = client.list_scheduled("q")
    assert entry.deliver_at == at


def test_a_pooled_client_is_reset_to_readable_styles(styled_url: str) -> None:
    pool = ClientPool(styled_url, max_idle=1)
    with pool.client() as client, client.transaction() as connection:
        connection.execute("set datestyle to german")
    with pool.client() as client:
        assert consume(client) == ["a"]
    pool.close()
