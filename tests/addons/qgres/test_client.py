"""`Client.serial` and `AsyncClient.serial`: serial queues from Python."""

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

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


def test_queues_are_listed(client: Client) -> None:
    assert client.serial.queues() == [SerialQueue(1, "Orders", "SP"), SerialQueue(2, "work", "SR")]


def test_entries_are_published_and_consumed_in_order(client: Client) -> None:
    serial = client.serial
    sent = [
        serial.publish("orders", text="tea"),
        serial.publish("orders", json=Order("tea", 2), binary=b"\x00\xff"),
        serial.publish("orders", json=[1, None]),
        serial.publish("orders"),
    ]
    assert sent == [1, 2, 3, 4]
    assert serial.consume("orders", "billing", limit=1) == [NumberedEntry(None, None, "tea", 1)]
    assert serial.consume("orders", "billing") == [
        NumberedEntry(b"\x00\xff", {"item": "tea", "count": 2}, None, 2),
        NumberedEntry(None, [1, None], None, 3),
        NumberedEntry(None, None, None, 4),
    ]
    assert serial.consume("orders", "billing") == []


def test_entries_are_added_and_removed(client: Client) -> None:
    client.serial.add("work", text="a")
    client.serial.add("work", json={"b": 1}, binary=b"c")
    removed = [*client.serial.remove("work", limit=1), *client.serial.remove("work")]
    expected = [Entry(None, None, "a"), Entry(b"c", {"b": 1}, None)]
    assert sorted(removed, key=repr) == sorted(expected, key=repr)
    assert client.serial.remove("work") == []


def test_a_block_that_fails_reads_the_entries_again(client: Client) -> None:
    client.serial.publish("orders", text="tea")
    client.serial.add("work", text="tea")
    with pytest.raises(ZeroDivisionError), client.transaction():
        assert len(client.serial.consume("orders", "billing")) == 1
        assert len(client.serial.remove("work")) == 1
        raise ZeroDivisionError
    assert len(client.serial.consume("orders", "billing")) == 1
    assert len(client.serial.remove("work")) == 1


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
    client.serial.publish("orders", json={"a": 1})
    client.force_next_tick(log)
    client.ticker()
    batch = client.claim(log, "reader", owner="me")
    assert batch is not None
    assert [(message.payload, message.extra1) for message in batch.events()] == [('{"a": 1}', "1")]
    batch.ack()
    client.serial.unlog("orders")
    client.serial.publish("orders", json={"a": 2})
    client.force_next_tick(log)
    client.ticker()
    batch = client.claim(log, "reader", owner="me")
    assert batch is not None
    assert list(batch.events()) == []


def test_errors_say_what_to_do(client: Client, database_url: str) -> None:
    with pytest.raises(DatabaseError, match='queue "nowhere" does not exist'):
        client.serial.publish("nowhere", text="a")
    with pytest.raises(DatabaseError, match="add"):
        client.serial.publish("work", text="a")
    with pytest.raises(InvalidArgument):
        client.serial.publish("orders", json={"a": object()})
    assert client.serial.publish("orders") == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda serial: serial.create("new", "PS"), r"Pass SP \(Serial Publisher\) or SR"),
        (lambda serial: serial.publish("orders", text={"a": 1}), "as json="),
        (lambda serial: serial.add("work", binary="a"), "as text="),
        (lambda serial: serial.consume("orders", "billing", limit=2**31), "out of range"),
        (lambda serial: serial.remove("work", limit=-1), "out of range"),
        (lambda serial: serial.remove("work", limit="1"), "Pass an int"),
    ],
)
def test_arguments_of_another_type_are_refused(client: Client, call: object, text: str) -> None:
    assert callable(call)
    client.serial.add("work", text="a")
    with pytest.raises(InvalidArgument, match=text):
        call(client.serial)
    with pytest.raises(MalformedPayload, match="a str must be JSON"):
        client.serial.publish("orders", json="tea")  # type: ignore[arg-type]
    assert (client.serial.publish("orders"), len(client.serial.remove("work"))) == (1, 1)


@pytest.mark.parametrize(
    ("call", "role"),
    [
        (lambda serial: serial.create("new", "SP"), "manage"),
        (lambda serial: serial.drop("orders", force=True), "manage"),
        (lambda serial: serial.log("orders"), "manage"),
        (lambda serial: serial.unlog("orders"), "manage"),
        (lambda serial: serial.publish("orders"), "insert"),
        (lambda serial: serial.add("work"), "insert"),
        (lambda serial: serial.consume("orders", "billing"), "delete"),
        (lambda serial: serial.remove("work"), "delete"),
        (lambda serial: serial.register("orders", "new"), "delete"),
    ],
)
def test_a_refused_call_names_the_role(client: Client, call: object, role: str) -> None:
    assert callable(call)
    with Client(as_login(client.url)) as stranger, pytest.raises(PermissionDenied) as caught:
        call(stranger.serial)
    assert f"grant qgres__queue_{role} to" in str(caught.value)


def test_a_database_without_the_add_on_says_so(client: Client) -> None:
    with client.transaction() as connection:
        connection.execute("select qgres.uninstall(true)")
    with pytest.raises(SchemaMissing, match="pgque install --with qgres"):
        client.serial.publish("orders")
    with pytest.raises(SchemaMissing, match="pgque install --with qgres"):
        client.serial.queues()


def test_an_old_snapshot_is_outdated(client: Client, database_url: str) -> None:
    with (
        Client(database_url) as other,
        pytest.raises(TransactionOutdated),
        other.transaction() as db,
    ):
        db.execute("set transaction isolation level repeatable read")
        other.serial.queues()
        client.serial.publish("orders")
        other.serial.publish("orders")


def test_both_faces_have_the_same_operations() -> None:
    names = {name for name in dir(SerialQueues) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncSerialQueues) if not name.startswith("_")}
    for name in names - {"run"}:
        assert inspect.iscoroutinefunction(getattr(AsyncSerialQueues, name))


def test_the_asynchronous_client_publishes_and_consumes(client: Client, database_url: str) -> None:
    async def work() -> list[str | None]:
        async with AsyncClient(database_url) as other:
            await other.serial.publish("orders", text="a")
            await other.serial.add("work", text="b")
            async with other.transaction():
                entries = await other.serial.consume("orders", "billing")
                return [entry.text for entry in [*entries, *await other.serial.remove("work")]]

    assert asyncio.run(work()) == ["a", "b"]
