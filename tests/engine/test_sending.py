"""Publishing events: send, send_batch and insert_event."""

from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    events,
    finish,
    make_queue,
    next_batch,
    payloads,
    refused,
    rows,
    tick,
    value,
)


def sent_by(db: Connection, call: str, *params: object) -> list[tuple[Any, ...]]:
    """Type, data and extras of what a call publishes."""
    make_queue(db)
    value(db, call, *params)
    tick(db)
    return [row[4:] for row in events(db, next_batch(db))]


@pytest.mark.parametrize(
    ("call", "published"),
    [
        ("select pgque.send('q', 'x')", ("default", "x")),
        ("select pgque.send('q', 't', 'x')", ("t", "x")),
        ("select pgque.send('q', '{\"a\":1, \"a\":2}')", ("default", '{"a":1, "a":2}')),
        ("select pgque.send('q', 't', '{\"a\":1}'::jsonb)", ("t", '{"a": 1}')),
        ("select pgque.send('q', '{\"a\":1}'::jsonb)", ("default", '{"a": 1}')),
        ("select pgque.send('q', 't', null)", ("t", None)),
        ("select pgque.send('q', null, 'x'::text)", (None, "x")),
        ("select pgque.insert_event('q', 't', 'x')", ("t", "x")),
        ("select pgque.send_batch('q', array['x'])", ("default", "x")),
        ("select pgque.send_batch('q', 't', array['x'])", ("t", "x")),
        ("select pgque.send_batch('q', array['[1,2]'::jsonb])", ("default", "[1, 2]")),
        ("select pgque.send_batch('q', 't', array['[1,2]'::jsonb])", ("t", "[1, 2]")),
    ],
)
def test_each_form_publishes_its_type_and_payload(
    db: Connection, call: str, published: tuple[str | None, str | None]
) -> None:
    assert sent_by(db, call) == [(*published, None, None, None, None)]


@pytest.mark.parametrize(
    ("call", "published"),
    [
        ("select pgque.send('q', '{\"a\":1}')", ['{"a":1}']),
        ("select pgque.send('q', 't', '{\"a\":1}')", ['{"a":1}']),
        ("select pgque.send('q', 't', '{\"a\":1}', 'key')", ['{"a":1}']),
        ("select pgque.send_batch('q', '{a,\"{\\\"b\\\":1}\"}')", ["a", '{"b":1}']),
        ("select pgque.send_batch('q', 't', '{a,\"{\\\"b\\\":1}\"}')", ["a", '{"b":1}']),
        ("select pgque.send_batch('q', '{}')", []),
        ("select pgque.send_batch('q', 't', '{}')", []),
    ],
)
def test_an_untyped_literal_is_text(db: Connection, call: str, published: list[str]) -> None:
    assert [row[1] for row in sent_by(db, call)] == published


@pytest.mark.parametrize("payload", ["'x'::text", "'\"x\"'::jsonb"])
@pytest.mark.parametrize("key", ["customer 7", "", None])
def test_a_partition_key_arrives_in_the_first_extra(
    db: Connection, payload: str, key: str | None
) -> None:
    call = f"select pgque.send('q', 't', {payload}, %s)"
    (sent,) = sent_by(db, call, key)
    assert (sent[0], sent[2:]) == ("t", (key, None, None, None))


def test_arguments_go_by_the_names_of_the_interface(db: Connection) -> None:
    make_queue(db)
    for call in (
        "send(queue_name => 'q', payload => 'x')",
        "send(queue_name => 'q', type_name => 't', payload => 'x')",
        "send(i_queue => 'q', i_type => 't', i_payload => 'x', i_partition_key => 'k')",
        "send_batch(queue_name => 'q', payloads => '{x}')",
        "send_batch(queue_name => 'q', type_name => 't', payloads => array['x'])",
    ):
        assert value(db, f"select pgque.{call}")


def test_extras_arrive_in_their_columns(db: Connection) -> None:
    call = "select pgque.insert_event('q', 't', 'x', '1', null, '3', '4')"
    assert sent_by(db, call) == [("t", "x", "1", None, "3", "4")]


@pytest.mark.parametrize("text", ["", "ünï ☃", 'it\'s "quoted"', "a\nb\tc", "\\x41", "x" * 200_000])
def test_text_goes_through_unchanged(db: Connection, text: str) -> None:
    assert sent_by(db, "select pgque.send('q', %s, %s)", text[:1], text)[0][:2] == (text[:1], text)


def test_malformed_json_is_refused_where_jsonb_is_asked_for(db: Connection) -> None:
    make_queue(db)
    with refused("22P02"):
        value(db, "select pgque.send('q', 't', %s::jsonb)", '{"a":')


def test_send_returns_the_id_of_the_event(db: Connection) -> None:
    make_queue(db)
    sent = value(db, "select pgque.send('q', 'x')")
    tick(db)
    assert [row[0] for row in events(db, next_batch(db))] == [sent]


def test_ids_grow_with_each_event(db: Connection) -> None:
    make_queue(db)
    ids = [value(db, "select pgque.send('q', 'x')") for _ in range(3)]
    assert ids == sorted(set(ids))


def test_send_batch_returns_ids_in_the_order_given(db: Connection) -> None:
    make_queue(db)
    texts = [f"event {n % 7} {n}" for n in range(500)]
    ids = value(db, "select pgque.send_batch('q', 't', %s::text[])", texts)
    tick(db)
    stored = {row[0]: row[5] for row in events(db, next_batch(db))}
    assert [stored[number] for number in ids] == texts


def test_an_empty_batch_of_payloads_sends_nothing(db: Connection) -> None:
    make_queue(db)
    assert value(db, "select pgque.send_batch('q', 't', '{}'::text[])") == []


def test_a_null_array_of_payloads_is_refused(db: Connection) -> None:
    make_queue(db)
    with refused("PQ005", "null"):
        value(db, "select pgque.send_batch('q', 't', null::text[])")


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.send(%s, 'x')",
        "select pgque.send(%s, 't', 'x')",
        "select pgque.send(%s, '{}'::jsonb)",
        "select pgque.send(%s, 't', '{}'::jsonb)",
        "select pgque.send(%s, 't', 'x', 'key')",
        "select pgque.send(%s, 't', '{}'::jsonb, 'key')",
        "select pgque.send_batch(%s, array['x'])",
        "select pgque.send_batch(%s, 't', '{x}')",
        "select pgque.send_batch(%s, 't', array['{}'::jsonb])",
        "select pgque.insert_event(%s, 't', 'x')",
        "select pgque.insert_event(%s, 't', 'x', '', '', '', '')",
        "select pgque.current_event_table(%s)",
    ],
)
class TestEveryWayToPublish:
    def test_names_an_unknown_queue(self, db: Connection, call: str) -> None:
        with refused("PQ001", '"nosuch"', "create_queue"):
            value(db, call, "nosuch")

    def test_refuses_a_null_queue(self, db: Connection, call: str) -> None:
        with refused("PQ005"):
            value(db, call, None)

    def test_is_closed_by_disable_insert(self, db: Connection, call: str) -> None:
        make_queue(db, "shut", disable_insert="true")
        with refused("PQ006", '"shut"', "disable_insert"):
            value(db, call, "shut")

    def test_is_open_again_after_it(self, db: Connection, call: str) -> None:
        make_queue(db, "shut", disable_insert="true")
        value(db, "select pgque.set_queue_config('shut', 'disable_insert', 'false')")
        assert value(db, call, "shut")


def test_an_event_of_a_rolled_back_transaction_is_never_delivered(db: Connection) -> None:
    make_queue(db)
    with db.transaction(force_rollback=True):
        value(db, "select pgque.send('q', 'ghost')")
    tick(db)
    assert payloads(db, next_batch(db)) == []


def test_events_carry_the_time_of_their_transaction(db: Connection) -> None:
    make_queue(db)
    with db.transaction():
        now = value(db, "select now()")
        value(db, "select pgque.send('q', 'x')")
    tick(db)
    assert [row[1] for row in events(db, next_batch(db))] == [now]


def test_a_queue_sent_to_in_a_transaction_that_created_it_delivers(db: Connection) -> None:
    with db.transaction():
        make_queue(db)
        value(db, "select pgque.send('q', 'early')")
    tick(db)
    assert payloads(db, next_batch(db)) == ["early"]


def test_a_callers_search_path_does_not_reach_the_insert(db: Connection) -> None:
    make_queue(db)
    db.execute("create schema evil")
    db.execute(
        "create function evil.event_1_insert(text, text) returns bigint"
        " language sql as 'select 666'"
    )
    db.execute("create function evil.format(text, int) returns text language sql as $$select ''$$")
    db.execute("create table evil.queue (queue_id int, queue_name text)")
    db.execute("set search_path = evil, pg_catalog, pgque")
    sent = value(db, "select pgque.send('q', 't', 'x')")
    db.execute("reset search_path")
    tick(db)
    batch = next_batch(db)
    assert [row[0] for row in events(db, batch)] == [sent]
    finish(db, batch)
    assert rows(db, "select * from evil.queue") == []
