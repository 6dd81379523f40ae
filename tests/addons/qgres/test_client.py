"""`Client.serial` and `AsyncClient.serial`: serial queues from Python."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pgque_dagster.client import (
    AsyncClient,
    Client,
    DatabaseError,
    Entry,
    InvalidArgument,
    MalformedPayload,
    NumberedEntry,
    PermissionDenied,
    SchemaMissing,
    SerialQueue,
    TransactionOutdated,
)
from pgque_dagster.client.serial import AsyncSerialQueues, SerialQueues
from tests.support.logins import as_login


@dataclass
class Order:
    item: str
    count: int


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        client.serial.create("Orders", "SP")
        client.serial.register("orders", "billing")
        client.serial.create("work", "SR")
        yield client


def test_entries_are_published_and_consumed_in_order(client: Client) -> None:
    serial = client.serial
    assert serial.queues() == [SerialQueue(1, "Orders", "SP"), SerialQueue(2, "work", "SR")]
    sent = [
        serial.publish("orders", text="tea"),
        serial.publish("orders", json=Order("tea", 2), binary=b"\x00\xff"),
        serial.publish("orders", json=[1, None]),
        serial.publish("orders"),
    ]
    assert sent == [1, 2, 3, 4]
    assert serial.consume("orders", "billing", limit=1) == [NumberedEntry(None, None, "tea", 1)]
    rest = [
        NumberedEntry(b"\x00\xff", {"item": "tea", "count": 2}, None, 2),
        NumberedEntry(None, [1, None], None, 3),
        NumberedEntry(None, None, None, 4),
    ]
    with pytest.raises(ZeroDivisionError), client.transaction():
        assert serial.consume("orders", "billing") == rest
        raise ZeroDivisionError
    assert serial.consume("orders", "billing") == rest
    assert serial.consume("orders", "billing") == []


def test_entries_are_added_and_removed(client: Client) -> None:
    client.serial.add("work", text="a")
    client.serial.add("work", json={"b": 1}, binary=b"c")
    with pytest.raises(ZeroDivisionError), client.transaction():
        assert len(client.serial.remove("work")) == 2
        raise ZeroDivisionError
    removed = [*client.serial.remove("work", limit=1), *client.serial.remove("work")]
    expected = [Entry(None, None, "a"), Entry(b"c", {"b": 1}, None)]
    assert sorted(removed, key=repr) == sorted(expected, key=repr)
    assert client.serial.remove("work") == []


def test_queues_and_consumers_are_dropped(client: Client) -> None:
    with pytest.raises(DatabaseError, match=r"still has consumers.*queue__drop"):
        client.serial.drop("orders")
    client.serial.unregister("orders", "billing")
    client.serial.drop("orders")
    client.serial.add("work", text="a")
    client.serial.drop("work", force=True)
    assert client.serial.queues() == []


def test_a_logged_queue_is_read_by_a_consumer_of_the_engine(client: Client) -> None:
    log = client.serial.log("orders")
    client.register_consumer(log, "reader")

    def published(number: int) -> list[tuple[Any, Any]]:
        client.serial.publish("orders", json={"a": number})
        client.force_next_tick(log)
        client.ticker()
        batch = client.claim(log, "reader", owner="me")
        assert batch is not None
        found = [(message.payload, message.extra1) for message in batch.events()]
        batch.ack()
        return found

    assert published(1) == [('{"a": 1}', "1")]
    client.serial.unlog("orders")
    assert published(2) == []


def test_wrong_calls_are_refused_and_lose_nothing(client: Client) -> None:
    s: Any = client.serial
    s.add("work", text="a")
    calls: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: s.publish("nowhere", text="a"), DatabaseError, 'queue "nowhere" does not exist'),
        (lambda: s.publish("work", text="a"), DatabaseError, "add"),
        (lambda: s.publish("orders", json={"a": object()}), InvalidArgument, "JSON"),
        (lambda: s.create("new", "PS"), InvalidArgument, r"Pass SP \(Serial Publisher\) or SR"),
        (lambda: s.publish("orders", text={"a": 1}), InvalidArgument, "as json="),
        (lambda: s.publish("orders", json="tea"), MalformedPayload, "a str must be JSON"),
        (lambda: s.add("work", binary="a"), InvalidArgument, "as text="),
        (lambda: s.consume("orders", "billing", limit=2**31), InvalidArgument, "out of range"),
        (lambda: s.remove("work", limit=-1), InvalidArgument, "out of range"),
        (lambda: s.remove("work", limit="1"), InvalidArgument, "Pass an int"),
    ]
    for call, error, text in calls:
        with pytest.raises(error, match=text):
            call()
    assert (s.publish("orders"), len(s.remove("work"))) == (1, 1)


def test_a_refused_call_names_the_role(client: Client) -> None:
    with Client(as_login(client.url)) as stranger:
        s = stranger.serial
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: s.create("new", "SP"), "manage"),
            (lambda: s.drop("orders", force=True), "manage"),
            (lambda: s.log("orders"), "manage"),
            (lambda: s.unlog("orders"), "manage"),
            (lambda: s.publish("orders"), "insert"),
            (lambda: s.add("work"), "insert"),
            (lambda: s.consume("orders", "billing"), "delete"),
            (lambda: s.remove("work"), "delete"),
            (lambda: s.register("orders", "new"), "delete"),
        ]
        for call, role in calls:
            with pytest.raises(PermissionDenied, match=f"grant qgres__queue_{role} to"):
                call()


def test_a_database_without_the_add_on_says_so(client: Client) -> None:
    with client.transaction() as connection:
        connection.execute("select qgres.uninstall(true)")
    for call in (lambda: client.serial.publish("orders"), client.serial.queues):
        with pytest.raises(SchemaMissing, match="pgque install --with qgres"):
            call()


def test_an_old_snapshot_is_outdated(client: Client) -> None:
    with (
        Client(client.url) as other,
        pytest.raises(TransactionOutdated),
        other.transaction() as db,
    ):
        db.execute("set transaction isolation level repeatable read")
        other.serial.queues()
        client.serial.publish("orders")
        other.serial.publish("orders")


def test_the_asynchronous_client_has_the_same_operations(client: Client) -> None:
    names = {name for name in dir(SerialQueues) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncSerialQueues) if not name.startswith("_")}
    for name in names - {"run"}:
        assert inspect.iscoroutinefunction(getattr(AsyncSerialQueues, name))

    async def work() -> list[str | None]:
        async with AsyncClient(client.url) as other:
            await other.serial.publish("orders", text="a")
            await other.serial.add("work", text="b")
            async with other.transaction():
                entries = await other.serial.consume("orders", "billing")
                return [entry.text for entry in [*entries, *await other.serial.remove("work")]]

    assert asyncio.run(work()) == ["a", "b"]
