"""Every payload that the client accepts comes back as it was sent."""

import dataclasses
import enum
import json
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgque_dagster.client import InvalidArgument, MalformedPayload, Message, encoding
from tests.client.consumer.support import Queue


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


def sent(q: Queue, payload: Any) -> Message:
    q.client.send("q", payload)
    q.tick()
    (message,) = q.receive()
    q.claim("a reader").ack()
    return message


def test_bytes_come_back_as_bytes(q: Queue) -> None:
    for payload in (b"", b"\0\xff", bytes(range(256)), bytearray(b"a"), memoryview(b"abcd")[::2]):
        message = sent(q, payload)
        assert message.as_bytes() == bytes(payload)
        decode = "select decode(split_part(%s, ',', 2), 'base64')"
        assert q.db.value(decode, message.payload) == bytes(payload)
    with pytest.raises(MalformedPayload, match="not sent as bytes"):
        sent(q, "abc").as_bytes()


def test_objects_and_values_within_are_sent_as_json(q: Queue) -> None:
    message = sent(q, Order(1, [Item("tea", 4.5)]))
    assert message.json() == {"id": 1, "items": [{"name": "tea", "price": 4.5}]}
    customer = Customer(name="Ada", since=datetime(2026, 1, 2, tzinfo=UTC))
    assert Customer.model_validate_json(sent(q, customer).payload or "") == customer
    number = uuid.UUID(int=1)
    message = sent(q, {"d": date(2026, 1, 2), "t": time(1), "u": number, "e": Color.RED})
    assert message.json() == {"d": "2026-01-02", "t": "01:00:00", "u": str(number), "e": "red"}


@pytest.mark.parametrize("has_orjson", [True, False])
@pytest.mark.parametrize(
    "digits", ["1.10", "-0", "1E+2", "0E-10", "123456789012345678901234567890.123456789", "7"]
)
def test_a_decimal_is_a_number_with_its_digits(
    digits: str, has_orjson: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_orjson:
        monkeypatch.setattr(encoding, "orjson", None)
    for payload in ({"total": [Decimal(digits), None]}, {"total": [Decimal(digits), "x"]}):
        written = encoding.encode(payload)
        assert written.startswith(f'{{"total":[{digits},')
        json.loads(written, parse_float=Decimal)
    assert encoding.encode(Decimal(digits)) == digits
    (value,) = json.loads(encoding.encode([Decimal(digits)]), parse_float=Decimal)
    assert value == Decimal(digits)


def test_a_payload_that_is_no_json_says_which_event_it_is(q: Queue) -> None:
    message = sent(q, "{")
    with pytest.raises(MalformedPayload, match=f"event {message.msg_id} is not JSON"):
        message.json()


class Measure(pydantic.BaseModel):
    value: float


@pytest.mark.parametrize(
    "payload",
    [
        *({"a": float("nan")}, Measure(value=float("inf")), {1, 2}, {"a": timedelta(1)}),
        *({"a": b"x"}, {date(2026, 1, 1): 1}, *({"a": Decimal(d)} for d in ("NaN", "-Infinity"))),
    ],
)
def test_a_value_that_json_lacks_is_refused_and_not_made_null(payload: Any) -> None:
    with pytest.raises(InvalidArgument, match="JSON"):
        encoding.encode(payload)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.uuids()
    | st.dates()
    | st.decimals(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


def written(payload: Any) -> Any:
    try:
        return json.loads(encoding.encode(payload))
    except InvalidArgument:
        return InvalidArgument


@settings(max_examples=50)
@given(st.lists(values))
def test_a_payload_is_the_same_with_and_without_orjson(payload: list[Any]) -> None:
    with_orjson = written(payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "orjson", None)
        assert written(payload) == with_orjson


def test_the_client_needs_no_optional_package() -> None:
    blocked = ["orjson", "psycopg_pool", "opentelemetry", "pydantic"]
    code = (
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        "import pgque_dagster.client as c\n"
        "from pgque_dagster.client.encoding import encode\n"
        "assert encode({'a': None}) == '{\"a\":null}'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
