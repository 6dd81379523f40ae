"""The messages of the Python client, in both faces."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    AddonMissing,
    AsyncClient,
    Client,
    DatabaseError,
    InvalidArgument,
    MalformedPayload,
    QueueNotFound,
)
from tests.support.logins import as_login
from tests.support.queues import connect, value

LONG = timedelta(seconds=30)
LISTENING = (
    "select exists (select from pg_stat_activity where query ilike 'listen postgremq%'"
    " and state = 'idle' and datname = current_database())"
)


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


def test_what_is_no_message_is_refused_by_the_name_of_the_call(client: Client) -> None:
    client.messages.publish("t", 1)
    claimed = client.messages.consume("q")
    no_message: Any = claimed
    for call, usage in (
        (client.messages.ack, "ack(*messages)"),
        (client.messages.nack, "nack(message)"),
        (client.messages.release, "release(message)"),
        (client.messages.extend, "extend(*messages, visibility=timedelta(minutes=1))"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            call(no_message)
        assert str(refused.value) == (
            "a value of type list is no message that `consume` returned. Pass what it returned: "
            f"{usage}."
        )
    with pytest.raises(InvalidArgument, match=r"timedelta is no message.*extend\(.*visibility="):
        client.messages.extend(*claimed, LONG)  # type: ignore[arg-type]


def test_bad_arguments_are_refused(client: Client) -> None:
    m: Any = client.messages
    m.publish("t", 1)
    (own,) = m.consume("q")
    m.create_queue("other", "t", exclusive_for=LONG)
    m.publish("t", 1)
    naive = datetime(2026, 1, 1)
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: m.publish("t", "{"), MalformedPayload, "not JSON"),
        (lambda: m.publish("t", b"[1]"), MalformedPayload, r"a str must be JSON: json\.dumps"),
        (lambda: m.publish("t", 1, deliver_after=naive), InvalidArgument, "time zone"),
        (lambda: m.publish("t", 1, deliver_after=LONG), InvalidArgument, "Pass a datetime"),
        (lambda: m.consume("q", visibility=LONG / 100), InvalidArgument, "whole seconds"),
        (lambda: m.consume("q", visibility=30), InvalidArgument, "Pass a timedelta"),
        (lambda: m.consume("q", visibility=LONG * 10**8), InvalidArgument, "out of range"),
        (lambda: m.consume("q", limit=2**31), InvalidArgument, "out of range"),
        (lambda: m.consume("q", limit="1"), InvalidArgument, "Pass an int"),
        (lambda: m.nack(own, delay_until=LONG), InvalidArgument, "Pass a datetime"),
        (lambda: m.nack(own, delay_until=naive), InvalidArgument, "time zone"),
        (lambda: m.nack(own.id), InvalidArgument, r"nack\(message\)"),
        (lambda: m.ack(own, *m.consume("other")), InvalidArgument, "several queues: other, q"),
        (lambda: m.extend(own, visibility=30), InvalidArgument, "Pass a timedelta"),
        (lambda: m.wait("q", 1), InvalidArgument, "Pass a timedelta"),
        (lambda: m.create_queue("x", "t", exclusive_for=30), InvalidArgument, "Pass a timedelta"),
    ]
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
    assert m.ack(own) == [own.id]
    assert len(m.consume("q", limit=9)) == 1


def test_a_queue_that_does_not_exist_is_no_empty_queue(client: Client) -> None:
    for queue in ("Q", "t", "postgremq.t"):
        for call in (client.messages.consume, client.messages.next_visible):
            with pytest.raises(QueueNotFound, match="list_queues"):
                call(queue)
    with pytest.raises(QueueNotFound):
        client.messages.wait("Q", LONG)


def test_a_reader_consumes(client: Client) -> None:
    client.messages.publish("t", 1)
    with Client(as_login(client.url, "pgque_reader")) as reader:
        assert reader.messages.next_visible("q") is not None
        (message,) = reader.messages.consume("q")
        assert reader.messages.ack(message) == [message.id]


def test_a_database_without_the_add_on_says_so(client: Client) -> None:
    with client.transaction() as connection:
        connection.execute("select postgremq.uninstall(true)")
    for call in (lambda: client.messages.publish("t", 1), lambda: client.messages.consume("q")):
        with pytest.raises(AddonMissing, match="pgque install --with postgremq"):
            call()


def test_wait_wakes_for_a_message_and_passes_over_notifications_of_others(client: Client) -> None:
    assert client.messages.wait("q", timedelta(0)) is False
    for text in ("", "no JSON", "[]", "1", "{}", '{"queues": 1}', '{"queues": null}'):
        with ThreadPoolExecutor() as pool, connect(client.url) as other:
            waiting = pool.submit(client.messages.wait, "q", 2 * LONG)
            while not value(other, LISTENING) and not waiting.done():
                value(other, "select pg_sleep(0.005)::text")
            value(other, "select pg_notify('postgremq_events', %s)::text", text)
            later = "now() + interval '0.1 s'" if text == "" else "now()"
            value(other, f"select postgremq.publish_message('t', '1', {later})")
            assert waiting.result() is True
        (message,) = client.messages.consume("q")
        client.messages.ack(message)


def test_wait_sleeps_while_an_exclusive_queue_is_not_alive(client: Client) -> None:
    client.messages.create_queue("own", "t", exclusive_for=LONG)
    client.messages.publish("t", 1)
    keep = "select postgremq.extend_queue_keep_alive('own', %s)"
    with client.transaction() as connection:
        connection.execute(keep, ["-1 s"])
    assert client.messages.wait("own", timedelta(seconds=0.1)) is False
    with client.transaction() as connection:
        connection.execute(keep, ["1 min"])
    assert client.messages.wait("own", LONG) is True


def test_asynchronous_face(client: Client) -> None:
    async def run() -> None:
        async with AsyncClient(client.url) as own:
            waiting = asyncio.create_task(own.messages.wait("q", 2 * LONG))
            client.messages.publish("t", 5)
            assert await waiting
            (message,) = await own.messages.consume("q")
            assert await own.messages.ack(message) == [message.id]

    asyncio.run(run())
