"""Publishing events: send, send_batch and insert_event, also of what is malformed or huge."""

from typing import Any

import pytest

from tests.support.queues.sql import Connection, refused

MIB = 1024 * 1024


def sent_by(db: Connection, call: str, *params: object) -> list[tuple[Any, ...]]:
    """Type, data and extras of what a call publishes."""
    db.value(f"select pgque.{call}", *params)
    batch = db.open_batch()
    found = [row[4:] for row in db.events(batch)]
    db.finish(batch)
    return found


def test_each_form_publishes_type_and_payload(q: Connection) -> None:
    for call, published in (
        ("send('q', 'x')", [("default", "x")]),
        ("send('q', 't', 'x')", [("t", "x")]),
        ("send('q', '{\"a\":1, \"a\":2}')", [("default", '{"a":1, "a":2}')]),
        ("send('q', 't', '{\"a\":1}')", [("t", '{"a":1}')]),
        ("send('q', 't', '{\"a\":1}'::jsonb)", [("t", '{"a": 1}')]),
        ("send('q', '{\"a\":1}'::jsonb)", [("default", '{"a": 1}')]),
        ("send('q', 't', null)", [("t", None)]),
        ("send('q', null, 'x'::text)", [(None, "x")]),
        ("send('q', 't', '\"\\u0000\"')", [("t", '"\\u0000"')]),
        ("insert_event('q', 't', 'x')", [("t", "x")]),
        ("send_batch('q', array['x'])", [("default", "x")]),
        ("send_batch('q', 't', array['x'])", [("t", "x")]),
        ("send_batch('q', '{a,\"{\\\"b\\\":1}\"}')", [("default", "a"), ("default", '{"b":1}')]),
        ("send_batch('q', 't', '{a,\"{\\\"b\\\":1}\"}')", [("t", "a"), ("t", '{"b":1}')]),
        ("send_batch('q', array['[1,2]'::jsonb])", [("default", "[1, 2]")]),
        ("send_batch('q', 't', array['[1,2]'::jsonb])", [("t", "[1, 2]")]),
    ):
        assert sent_by(q, call) == [(*each, None, None, None, None) for each in published], call


def test_a_partition_key_is_the_first_extra(q: Connection) -> None:
    for payload in ("'x'", "'x'::text", "'\"x\"'::jsonb"):
        for key in ("customer 7", "", None):
            (sent,) = sent_by(q, f"send('q', 't', {payload}, %s)", key)
            assert (sent[0], sent[2:]) == ("t", (key, None, None, None))


def test_text_goes_through_unchanged(q: Connection) -> None:
    for text in ("", "ünï ☃", 'it\'s "quoted"', "a\nb\tc", "\\x41", "x" * 200_000):
        assert sent_by(q, "send('q', %s, %s)", text[:1], text)[0][:2] == (text[:1], text)


def test_send_batch_returns_ids_in_the_order_given(q: Connection) -> None:
    arrays: dict[str, list[str | None]] = {
        "array['a', null, 'b', null]": ["a", None, "b", None],
        "'{a,NULL,null}'": ["a", None, None],
        "'{\"NULL\"}'": ["NULL"],
        "array[null::text]": [None],
        "array['1'::jsonb, null, 'null'::jsonb]": ["1", None, "null"],
        "array[['a', 'b'], ['c', 'd']]": ["a", "b", "c", "d"],
        "'[5:8]={a,b,c,d}'::text[]": ["a", "b", "c", "d"],
        "array(select (n % 7)::text from generate_series(1, 497) n)": [*"1234560"] * 71,
    }
    for array, sent in arrays.items():
        ids = q.value(f"select pgque.send_batch('q', 't', {array})")
        batch = q.open_batch()
        stored = {row[0]: row[5] for row in q.events(batch)}
        assert [stored[number] for number in ids] == sent
        assert len(ids) == len(stored)
        q.finish(batch)


def test_no_array_is_refused_and_an_empty_one_sends_nothing(q: Connection) -> None:
    for form in ("send_batch('q', {})", "send_batch('q', 't', {})"):
        for array in ("null", "null::text", "null::text[]", "null::jsonb[]", "null::varchar[]"):
            with refused("PQ005", "null", "empty"):
                q.value(f"select pgque.{form.format(array)}")
        for literal in ("{a", "a", "", "{{a},{b,c}}"):
            with refused("22P02", "malformed array literal"):
                q.value(f"select pgque.{form.format('%s')}", literal)
        for array in ("'{}'", "'{}'::text[]", "'{}'::jsonb[]", "array[]::varchar[]"):
            assert q.value(f"select pgque.{form.format(array)}") == []
    assert q.received() == []


def test_a_closed_queue_takes_nothing_until_it_is_open_again(db: Connection) -> None:
    db.make_queue("shut")
    for call in (
        "send(%s, 'x')",
        "send(%s, 't', 'x')",
        "send(%s, '{}'::jsonb)",
        "send(%s, 't', '{}'::jsonb)",
        "send(%s, 't', 'x', 'key')",
        "send(%s, 't', '{}'::jsonb, 'key')",
        "send_batch(%s, array['x'])",
        "send_batch(%s, 't', '{x}')",
        "send_batch(%s, 't', array['{}'::jsonb])",
        "insert_event(%s, 't', 'x')",
        "insert_event(%s, 't', 'x', '', '', '', '')",
        "insert_event_bulk(%s, 't', '{x}')",
        "current_event_table(%s)",
    ):
        db.value("select pgque.set_queue_config('shut', 'disable_insert', 'true')")
        for queue, code, words in (
            ("nosuch", "PQ001", ('"nosuch"', "create_queue")),
            (None, "PQ005", ()),
            ("shut", "PQ006", ('"shut"', "disable_insert")),
        ):
            with refused(code, *words):
                db.value(f"select pgque.{call}", queue)
        db.value("select pgque.set_queue_config('shut', 'disable_insert', 'false')")
        assert db.value(f"select pgque.{call}", "shut")


def test_events_carry_the_time_of_their_transaction_and_go_with_it(q: Connection) -> None:
    with q.transaction(force_rollback=True):
        q.value("select pgque.send('q', 'ghost')")
    with q.transaction():
        now = q.value("select now()")
        q.value("select pgque.send('q', 'x')")
    assert [(row[1], row[5]) for row in q.events(q.open_batch())] == [(now, "x")]


def test_a_queue_sent_to_in_a_transaction_that_created_it_delivers(db: Connection) -> None:
    with db.transaction():
        db.make_queue()
        db.value("select pgque.send('q', 'early')")
    assert db.received() == ["early"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "sent"),
    [
        ("pgque.send('q', 't', {})", "{}"),
        ("pgque.send('q', 't', to_jsonb({}))", "to_jsonb({})::text"),
        ("pgque.send_batch('q', 't', array[{}])::text", "{}"),
        ("pgque.send_at('q', 't', {}, now() + interval '1 hour')", "{}"),
    ],
)
def test_200_megabytes_are_sent_and_received(q: Connection, call: str, sent: str) -> None:
    content = f"repeat(md5('x'), {200 * MIB // 32})"
    q.value(f"select {call.format(content)}")
    q.execute("update pgque.delayed_events set de_deliver_at = now()")
    q.value("select pgque.maint_deliver_delayed()")
    q.tick()
    is_same = f"payload = {sent.format(content)}"
    assert q.value(f"select {is_same} from pgque.receive('q', 'c', 1)") is True
    with refused("54000", "268435455"):
        q.value("select pgque.send('q', 't', to_jsonb(repeat('x', 268435456)))")
