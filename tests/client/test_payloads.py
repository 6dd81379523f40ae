"""Every payload that the client accepts comes back as it was sent."""

import dataclasses
import enum
import json
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, time
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload, Message, encoding
from pgque_dagster.client.models import Event
from tests.support.queues import Connection, make_queue, tick


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    name: str
    price: float


@dataclasses.dataclass
class Order:
    id: int
    items: list[Item]


class Customer(pydantic.BaseModel):
    name: str
    since: datetime


def sent(client: Client, db: Connection, payload: Any) -> Message:
    make_queue(db)
    client.send("q", payload)
    tick(db)
    received = client.receive("q", "c")
    assert received is not None
    (message,) = received.messages
    return message


@pytest.mark.parametrize(
    "payload", [b"", b"\0\xff", bytes(range(256)), bytearray(b"a"), memoryview(b"abcd")[::2]]
)
def test_bytes_come_back_as_bytes(client: Client, db: Connection, payload: bytes) -> None:
    assert sent(client, db, payload).as_bytes() == bytes(payload)


def test_text_is_not_taken_for_bytes(client: Client, db: Connection) -> None:
    with pytest.raises(MalformedPayload, match="not sent as bytes"):
        sent(client, db, "abc").as_bytes()


def test_sql_reads_bytes(client: Client, db: Connection) -> None:
    message = sent(client, db, b"\x00tea")
    decoded = db.execute("select decode(split_part(%s, ',', 2), 'base64')", (message.payload,))
    assert decoded.fetchone() == (b"\x00tea",)


def test_a_dataclass_is_sent_as_json(client: Client, db: Connection) -> None:
    message = sent(client, db, Order(1, [Item("tea", 4.5)]))
    assert message.json() == {"id": 1, "items": [{"name": "tea", "price": 4.5}]}


def test_a_pydantic_model_is_sent_as_json(client: Client, db: Connection) -> None:
    customer = Customer(name="Ada", since=datetime(2026, 1, 2, tzinfo=UTC))
    message = sent(client, db, customer)
    assert Customer.model_validate_json(message.payload or "") == customer


def test_values_within_json_are_written_as_text(client: Client, db: Connection) -> None:
    number = uuid.UUID(int=1)
    message = sent(client, db, {"d": date(2026, 1, 2), "t": time(1), "u": number, "e": Color.RED})
    assert message.json() == {"d": "2026-01-02", "t": "01:00:00", "u": str(number), "e": "red"}


def test_a_payload_that_is_no_json_says_which_event_it_is(client: Client, db: Connection) -> None:
    message = sent(client, db, "{")
    with pytest.raises(MalformedPayload, match=f"event {message.msg_id} is not JSON"):
        message.json()


class Measure(pydantic.BaseModel):
    value: float


@pytest.mark.parametrize("payload", [{"a": float("nan")}, Measure(value=float("inf")), {1, 2}])
def test_a_value_that_json_lacks_is_refused_and_not_made_null(payload: Any) -> None:
    with pytest.raises(InvalidArgument, match="JSON"):
        encoding.encode(payload)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.uuids() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


def written(payload: Any) -> Any:
    try:
        return json.loads(encoding.encode(payload))
    except InvalidArgument:
        return InvalidArgument


@given(st.lists(values))
def test_a_payload_is_the_same_with_and_without_orjson(payload: list[Any]) -> None:
    with_orjson = written(payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "orjson", None)
        assert written(payload) == with_orjson


def test_the_client_needs_no_optional_package() -> None:
    blocked = ["orjson", "psycopg_pool", "opentelemetry", "tenacity", "pyrate_limiter", "pydantic"]
    code = (
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        "import pgque_dagster.client as c\n"
        "from pgque_dagster.client.encoding import encode\n"
        "assert encode({'a': None}) == '{\"a\":null}'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestBulk:
    EVENTS = (
        {"n": 1},
        Event("two", type="t2"),
        Event(b"3", key="k3"),
        Event('4\t\\ \n\r"', type="t4", key="k4\\N"),
    )

    def expected(self) -> list[tuple[Any, ...]]:
        bytes_text = encoding.encode(b"3")
        return [
            ("t", '{"n":1}', None),
            ("t2", "two", None),
            ("t", bytes_text, "k3"),
            ("t4", '4\t\\ \n\r"', "k4\\N"),
        ]

    def received(self, client: Client, db: Connection) -> list[Message]:
        tick(db)
        received = client.receive("q", "c")
        return received.messages if received else []

    def test_send_batch_keeps_types_keys_and_order(self, client: Client, db: Connection) -> None:
        make_queue(db)
        ids = client.send_batch("q", self.EVENTS, type="t")
        messages = self.received(client, db)
        assert [(m.type, m.payload, m.key) for m in messages] == self.expected()
        assert [m.msg_id for m in messages] == ids

    def test_copy_keeps_types_and_keys(self, client: Client, db: Connection) -> None:
        make_queue(db)
        assert client.copy_events("q", self.EVENTS, type="t") == 4
        messages = self.received(client, db)
        assert [(m.type, m.payload, m.key) for m in messages] == self.expected()

    def test_copy_sends_more_events_than_fit_in_a_block(
        self, client: Client, db: Connection
    ) -> None:
        make_queue(db)
        assert client.copy_events("q", ("x" * 1000 for _ in range(1000))) == 1000
        assert len(self.received(client, db)) == 1000

    def test_a_copy_that_fails_sends_nothing(self, client: Client, db: Connection) -> None:
        make_queue(db)
        with pytest.raises(InvalidArgument):
            client.copy_events("q", ["x" * 100_000, {1, 2}])  # type: ignore[list-item]
        with pytest.raises(MalformedPayload, match="zero byte"):
            client.copy_events("q", ["fine", "a\0b"])
        assert self.received(client, db) == []
        assert client.copy_events("q", ["after"]) == 1

    def test_a_copy_is_part_of_the_transaction(self, client: Client, db: Connection) -> None:
        make_queue(db)
        with pytest.raises(RuntimeError), client.transaction():
            client.copy_events("q", ["a"])
            raise RuntimeError
        assert self.received(client, db) == []


class TestReceive:
    def test_all_events_of_a_batch_are_received_until_it_is_finished(
        self, client: Client, db: Connection
    ) -> None:
        make_queue(db)
        client.send_batch("q", [f"{number}" for number in range(200)])
        tick(db)
        first, again = client.receive("q", "c"), client.receive("q", "c")
        assert first is not None and first == again
        assert len(first.messages) == 200
        client.finish_batch(first.batch_id)
        assert client.receive("q", "c") is None

    def test_batches_without_events_are_passed_over(self, client: Client, db: Connection) -> None:
        make_queue(db)
        for _ in range(3):
            tick(db)
        client.send("q", "a")
        tick(db)
        received = client.receive("q", "c")
        assert received is not None
        assert [message.payload for message in received.messages] == ["a"]
