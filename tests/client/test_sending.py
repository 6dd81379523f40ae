"""What the client sends, at once, later, or once, is what consumers read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgque_dagster.client import Event, InvalidArgument, MalformedPayload, Sent, encoding
from tests.client.consumer.support import Queue

TOMORROW = datetime.now(UTC) + timedelta(days=1)
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def test_a_payload_arrives_as_text_or_as_json(q: Queue) -> None:
    payloads: list[tuple[Any, str]] = [
        ("plain text", "plain text"),
        ("", ""),
        ("{", "{"),
        ("ünï ☃ '\"\\", "ünï ☃ '\"\\"),
        ({"a": [1, None, True], "ü": "☃"}, '{"a":[1,null,true],"ü":"☃"}'),
        ([], "[]"),
        ([1, "two"], '[1,"two"]'),
    ]
    sent = [q.client.send("q", payload, type="order") for payload, _ in payloads]
    assert q.client.send_batch("q", []) == []
    q.tick()
    received = q.receive()
    assert [message.payload for message in received] == [text for _, text in payloads]
    assert [message.msg_id for message in received] == sent
    assert {message.type for message in received} == {"order"}


EVENTS = (
    {"n": 1},
    Event("two", type="t2"),
    Event(b"3", key="k3"),
    Event('4\t\\ \n\r"', type="t4", key="k4\\N"),
)
STORED = [
    ("t", '{"n":1}', None),
    ("t2", "two", None),
    ("t", encoding.encode(b"3"), "k3"),
    ("t4", '4\t\\ \n\r"', "k4\\N"),
]


class TestBulk:
    def test_types_keys_and_order_are_kept(self, q: Queue) -> None:
        ids = q.client.send_batch("q", EVENTS, type="t")
        assert q.client.copy_events("q", EVENTS, type="t") == 4
        q.tick()
        messages = q.receive()
        assert [(m.type, m.payload, m.key) for m in messages] == [*STORED, *STORED]
        assert [m.msg_id for m in messages[:4]] == ids

    def test_copy_sends_more_events_than_fit_in_a_buffer(self, q: Queue) -> None:
        assert q.client.copy_events("q", ("x" * 1000 for _ in range(1000))) == 1000
        assert len(q.sent()) == 1000

    def test_one_payload_that_is_refused_sends_none(self, q: Queue) -> None:
        big = "x" * 100_000
        with pytest.raises(InvalidArgument):
            q.client.send_batch("q", ["fine", {1, 2}])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument):
            q.client.copy_events("q", [big, {1, 2}])  # type: ignore[list-item]
        with pytest.raises(MalformedPayload, match="NUL"):
            q.client.copy_events("q", ["fine", "a\0b"])
        assert q.sent() == []
        assert q.client.copy_events("q", ["after"]) == 1


def test_a_payload_that_cannot_be_stored_is_refused(q: Queue) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({1, 2}, InvalidArgument, "JSON"),
        ({"a": object()}, InvalidArgument, "JSON"),
        ([float("nan")], InvalidArgument, "JSON"),
        ("a\0b", MalformedPayload, "."),
        ("half a pair \ud800", MalformedPayload, "."),
        ({"a": "\udfff"}, MalformedPayload, "."),
    ]
    for payload, error, words in wrong:
        with pytest.raises(error, match=words):
            q.client.send("q", payload)
    assert q.sent() == []


def test_a_partition_key_arrives(q: Queue) -> None:
    q.client.send("q", {"a": 1}, partition_key="customer 7")
    q.client.send("q", {"a": 1})
    q.client.send_idem("q", {"a": 1}, "k", partition_key="customer 8")
    q.tick()
    keys = [message.key for message in q.receive()]
    assert keys == ["customer 7", None, "customer 8"]


class TestSendAt:
    def test_an_event_waits_and_is_listed_until_maintenance_delivers_it(self, q: Queue) -> None:
        client = q.client
        entry = client.send_at("q", {"a": 1}, TOMORROW, type="reminder")
        (listed,) = client.list_scheduled("q")
        assert (listed.id, listed.deliver_at) == (entry, TOMORROW)
        assert (listed.type, listed.payload) == ("reminder", '{"a":1}')
        assert client.send_at("q", "past", YESTERDAY)
        client.maint()
        assert q.sent() == ["past"]
        q.db.execute("update pgque.delayed_events set de_deliver_at = now()")
        client.maint()
        assert q.sent() == ["past", '{"a":1}']
        assert client.list_scheduled("q") == []

    def test_a_cancelled_event_is_gone(self, q: Queue) -> None:
        entries = [q.client.send_at("q", "x", TOMORROW) for _ in range(3)]
        assert [q.client.cancel_scheduled(entries[0]) for _ in range(2)] == [True, False]
        assert [entry.id for entry in q.client.list_scheduled("q")] == entries[1:]
        assert len(q.client.list_scheduled("q", 1)) == 1

    def test_a_time_without_a_zone_is_refused(self, q: Queue) -> None:
        with pytest.raises(InvalidArgument, match="time zone"):
            q.client.send_at("q", "x", TOMORROW.replace(tzinfo=None))


def test_an_event_under_a_key_is_sent_once_while_the_key_counts(q: Queue) -> None:
    first = q.client.send_idem("q", {"a": 1}, "k", type="order")
    assert q.client.send_idem("q", {"a": 2}, "k") == Sent(first.event_id, deduped=True)
    assert not first.deduped
    q.tick()
    (message,) = q.receive()
    assert (message.msg_id, message.type, message.payload) == (first.event_id, "order", '{"a":1}')
    q.client.send_idem("q", "x", "brief", ttl=timedelta(microseconds=1))
    assert not q.client.send_idem("q", "x", "brief").deduped
