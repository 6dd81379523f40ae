"""The messages of the Python client, in both faces."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pgque_dagster.client import (
    AsyncClient,
    Client,
    DatabaseError,
    InvalidArgument,
    MalformedPayload,
)

LONG = timedelta(seconds=30)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        client.messages.create_topic("t")
        client.messages.create_queue("q", "t")
        yield client


def test_message_is_published_consumed_and_acked(client: Client) -> None:
    id_ = client.messages.publish("t", {"id": 7})
    assert client.messages.publish("t", "[1]") == id_ + 1
    one, two = client.messages.consume("q", limit=5)
    assert (one.id, one.json(), two.json(), one.attempts) == (id_, {"id": 7}, [1], 1)
    assert client.messages.extend(one, two, visibility=LONG) == [one.id, two.id]
    assert sorted(client.messages.ack(one, two)) == [one.id, two.id]
    assert client.messages.ack(one) == []
    assert client.messages.ack() == []


def test_message_is_given_back(client: Client) -> None:
    client.messages.publish("t", 1)
    (first,) = client.messages.consume("q")
    client.messages.release(first)
    (again,) = client.messages.consume("q")
    assert again.attempts == 1
    client.messages.nack(again, delay_until=datetime.now(UTC) + LONG)
    assert client.messages.consume("q") == []
    with pytest.raises(DatabaseError, match="Nack failed"):
        client.messages.nack(again)
    wait = client.messages.next_visible("q")
    assert wait is not None
    assert timedelta(0) < wait <= LONG


def test_bad_input_is_refused(client: Client) -> None:
    with pytest.raises(MalformedPayload, match="not JSON"):
        client.messages.publish("t", "{")
    with pytest.raises(InvalidArgument, match="time zone"):
        client.messages.publish("t", 1, deliver_after=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgument, match="whole seconds"):
        client.messages.consume("q", visibility=timedelta(seconds=0.5))
    client.messages.create_queue("other", "t", exclusive_for=LONG)
    client.messages.publish("t", 1)
    claims = [*client.messages.consume("q"), *client.messages.consume("other")]
    with pytest.raises(InvalidArgument, match="several queues: other, q"):
        client.messages.ack(*claims)


def test_wait_wakes_for_a_message(client: Client, database_url: str) -> None:
    assert client.messages.wait("q", timedelta(0)) is False
    woken = []
    thread = threading.Thread(target=lambda: woken.append(client.messages.wait("q", 2 * LONG)))
    thread.start()
    with Client(database_url) as other:
        other.messages.publish("t", 1, deliver_after=datetime.now(UTC) + timedelta(seconds=1))
    thread.join(timeout=50)
    assert woken == [True]
    assert len(client.messages.consume("q")) == 1


def test_asynchronous_face(client: Client, database_url: str) -> None:
    async def run() -> None:
        async with AsyncClient(database_url) as own:
            waiting = asyncio.create_task(own.messages.wait("q", 2 * LONG))
            client.messages.publish("t", 5)
            assert await waiting
            (message,) = await own.messages.consume("q")
            assert await own.messages.ack(message) == [message.id]

    asyncio.run(run())
