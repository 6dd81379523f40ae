"""The messages of the Python client, in both faces."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgque_dagster.client import (
    AddonMissing,
    AsyncClient,
    ClaimedMessage,
    Client,
    DatabaseError,
    InvalidArgument,
    MalformedPayload,
    Messages,
    QueueNotFound,
)
from tests.support.logins import as_login
from tests.support.queues import connect, value

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


def test_what_is_no_message_is_refused_by_the_name_of_the_call(client: Client) -> None:
    client.messages.publish("t", 1)
    claimed = client.messages.consume("q")
    no_message: Any = claimed
    usages: list[tuple[Callable[..., object], str]] = [
        (client.messages.ack, "ack(*messages)"),
        (client.messages.nack, "nack(message)"),
        (client.messages.release, "release(message)"),
        (client.messages.extend, "extend(*messages, visibility=timedelta(minutes=1))"),
    ]
    for call, usage in usages:
        with pytest.raises(InvalidArgument) as refused:
            call(no_message)
        assert str(refused.value) == (
            "a value of type list is no message that `consume` returned. Pass what it returned: "
            f"{usage}."
        )
    with pytest.raises(
        InvalidArgument, match=r"type timedelta is no message.*extend\(.*visibility="
    ):
        client.messages.extend(*claimed, LONG)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, _: m.consume("q", visibility=30), "Pass a timedelta"),
        (lambda m, _: m.consume("q", visibility=timedelta(days=30_000)), "out of range"),
        (lambda m, _: m.consume("q", limit=2**31), "out of range"),
        (lambda m, _: m.consume("q", limit="1"), "Pass an int"),
        (lambda m, _: m.publish("t", 1, deliver_after=LONG), "Pass a datetime"),
        (lambda m, own: m.nack(own, delay_until=LONG), "Pass a datetime"),
        (lambda m, own: m.nack(own, delay_until=datetime(2026, 1, 1)), "time zone"),
        (lambda m, own: m.ack([own]), r"ack\(\*messages\)"),
        (lambda m, own: m.nack(own.id), r"nack\(message\)"),
        (lambda m, own: m.extend(own, visibility=30), "Pass a timedelta"),
        (lambda m, _: m.wait("q", 1), "Pass a timedelta"),
        (lambda m, _: m.create_queue("x", "t", exclusive_for=30), "Pass a timedelta"),
    ],
)
def test_arguments_of_another_type_are_refused(
    client: Client, call: Callable[[Messages, ClaimedMessage], object], text: str
) -> None:
    client.messages.publish("t", 1)
    (own,) = client.messages.consume("q")
    with pytest.raises(InvalidArgument, match=text):
        call(client.messages, own)
    assert client.messages.ack(own) == [own.id]


@pytest.mark.parametrize("text", ["hello", b"[1]"])
def test_a_text_that_is_not_json_is_refused(client: Client, text: str | bytes) -> None:
    with pytest.raises(MalformedPayload, match=r"a str must be JSON: json\.dumps"):
        client.messages.publish("t", text)


@pytest.mark.parametrize("name", ["consume", "next_visible"])
def test_a_queue_that_does_not_exist_is_no_empty_queue(client: Client, name: str) -> None:
    for queue in ("Q", "t", "postgremq.t"):
        with pytest.raises(QueueNotFound, match="list_queues"):
            getattr(client.messages, name)(queue)
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


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "1", "{}", '{"queues": 1}', '{"queues": null}']
)
def test_wait_passes_over_notifications_of_others(
    client: Client, database_url: str, text: str
) -> None:
    with ThreadPoolExecutor() as pool, connect(database_url) as other:
        waiting = pool.submit(client.messages.wait, "q", 2 * LONG)
        listening = (
            "select exists (select from pg_stat_activity where query ilike 'listen postgremq%'"
            " and state = 'idle' and datname = current_database())"
        )
        while not value(other, listening) and not waiting.done():
            value(other, "select pg_sleep(0.005)::text")
        value(other, "select pg_notify('postgremq_events', %s)::text", text)
        value(other, "select postgremq.publish_message('t', '1')")
        assert waiting.result() is True


def test_asynchronous_face(client: Client, database_url: str) -> None:
    async def run() -> None:
        async with AsyncClient(database_url) as own:
            waiting = asyncio.create_task(own.messages.wait("q", 2 * LONG))
            client.messages.publish("t", 5)
            assert await waiting
            (message,) = await own.messages.consume("q")
            assert await own.messages.ack(message) == [message.id]

    asyncio.run(run())
