"""What the client sends is what consumers read."""

import json
from typing import Any

import pytest

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from tests.support.queues import Connection, drain, events, make_queue, next_batch, tick


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ("ünï ☃ '\"\\", "ünï ☃ '\"\\"),
        ({"a": [1, None, True], "ü": "☃"}, '{"a":[1,null,true],"ü":"☃"}'),
        ([], "[]"),
        ([1, "two"], '[1,"two"]'),
    ],
)
def test_a_payload_arrives_as_text_or_as_json(
    client: Client, db: Connection, payload: Any, stored: str
) -> None:
    make_queue(db)
    client.send("q", payload)
    tick(db)
    assert drain(db) == [stored]


def test_a_type_arrives(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", "x", type="order")
    tick(db)
    assert [row[4] for row in events(db, next_batch(db))] == ["order"]


def test_send_returns_the_events_id(client: Client, db: Connection) -> None:
    make_queue(db)
    sent = client.send("q", "x")
    tick(db)
    assert [row[0] for row in events(db, next_batch(db))] == [sent]


def test_send_batch_returns_ids_in_order(client: Client, db: Connection) -> None:
    make_queue(db)
    ids = client.send_batch("q", [f"{n}" for n in range(100)], type="t")
    tick(db)
    stored = {row[0]: row[5] for row in events(db, next_batch(db))}
    assert [stored[number] for number in ids] == [f"{n}" for n in range(100)]


def test_send_batch_mixes_text_and_json(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send_batch("q", ["a", {"b": 1}, []])
    tick(db)
    assert drain(db) == ["a", '{"b":1}', "[]"]


def test_an_empty_batch_sends_nothing(client: Client, db: Connection) -> None:
    make_queue(db)
    assert client.send_batch("q", []) == []


def test_checked_json_is_stored(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", '{"a": 1}', check_json=True)
    tick(db)
    assert [json.loads(text) for text in drain(db)] == [{"a": 1}]


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "nope", '"\\ud800"'])
def test_text_that_is_no_json_is_refused_where_json_is_asked_for(
    client: Client, db: Connection, text: str
) -> None:
    make_queue(db)
    with pytest.raises(MalformedPayload):
        client.send("q", text, check_json=True)


def test_unchecked_text_need_not_be_json(client: Client, db: Connection) -> None:
    make_queue(db)
    client.send("q", "{")
    tick(db)
    assert drain(db) == ["{"]


@pytest.mark.parametrize("payload", [{1, 2}, {"a": object()}, [float("nan")]])
def test_what_json_cannot_express_is_refused(client: Client, db: Connection, payload: Any) -> None:
    make_queue(db)
    with pytest.raises(InvalidArgument, match="JSON"):
        client.send("q", payload)


@pytest.mark.parametrize("payload", ["a\0b", "half a pair \ud800", {"a": "\udfff"}])
def test_what_the_database_cannot_store_is_refused(
    client: Client, db: Connection, payload: Any
) -> None:
    make_queue(db)
    with pytest.raises(MalformedPayload):
        client.send("q", payload)


def test_one_payload_that_is_refused_sends_none_of_the_batch(
    client: Client, db: Connection
) -> None:
    make_queue(db)
    with pytest.raises(InvalidArgument):
        client.send_batch("q", ["fine", {1, 2}])  # type: ignore[list-item]
    tick(db)
    assert drain(db) == []
