"""What code written for PgQ relies on: lenient calls, words in errors, and settings by UPDATE."""

from collections.abc import Callable

import psycopg
import pytest

from tests.support.dead_letters import give_up
from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.slots import subscribe

Another = Callable[[], Connection]


@pytest.mark.parametrize("queue", ["q", "nosuch"])
@pytest.mark.parametrize(
    "call",
    [
        "unsubscribe(%s, 'nobody')",
        "unregister_consumer(%s, 'nobody')",
        "unregister_subconsumer(%s, 'nobody', 'w')",
        "unsubscribe_subconsumer(%s, 'nobody', 'w')",
        "touch_subconsumer(%s, 'nobody', 'w')",
    ],
)
def test_ending_what_is_not_registered_returns_0(db: Connection, call: str, queue: str) -> None:
    make_queue(db)
    assert value(db, f"select pgque.{call}", queue) == 0


@pytest.mark.parametrize("call", ["unregister_subconsumer", "touch_subconsumer"])
def test_a_subconsumer_that_is_not_registered_returns_0(db: Connection, call: str) -> None:
    make_queue(db)
    value(db, "select pgque.register_subconsumer('q', 'shared', 'w')")
    assert value(db, f"select pgque.{call}('q', 'shared', 'nobody')") == 0
    assert value(db, f"select pgque.{call}('q', 'shared', 'w')") == 1


@pytest.mark.parametrize(("queue", "slot"), [("nosuch", 0), ("q", 1), ("q", 7)])
def test_a_slot_that_is_not_subscribed_ends_in_silence(
    db: Connection, queue: str, slot: int
) -> None:
    make_queue(db, consumers=())
    subscribe(db, 0, 2)
    assert value(db, "select pgque.unsubscribe_slot(%s, 'c', %s)::text", queue, slot) == ""
    assert value(db, "select count(*) from pgque.partition_slot_status where slot = 0") == 1


@pytest.mark.parametrize(
    "call",
    [
        "get_queue_info('nosuch')",
        "get_consumer_info('nosuch')",
        "get_consumer_info('nosuch', 'c')",
        "get_consumer_info('q', 'nobody')",
        "dlq_inspect('nosuch')",
        "in_flight('nosuch')",
        "receive('q', 'c', null)",
        "receive_coop('q', 'shared', 'w', null)",
    ],
)
def test_what_is_not_there_has_no_row(db: Connection, call: str) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    assert rows(db, f"select * from pgque.{call}") == []


@pytest.mark.parametrize("call", ["maint_idem", "maint_rotate_tables_step1", "tune_storage"])
def test_a_queue_that_is_not_there_needs_no_maintenance(db: Connection, call: str) -> None:
    make_queue(db)
    value(db, "select event_id from pgque.send_idem('q', 't', 'x'::text, 'k', '1 microsecond')")
    assert value(db, f"select pgque.{call}('nosuch')") == 0
    assert value(db, "select pgque.maint_idem('q')") == 1


def test_dead_letters_of_no_queue_are_none(db: Connection) -> None:
    assert value(db, "select pgque.dlq_purge('nosuch')") == 0
    assert rows(db, "select * from pgque.dlq_replay_all('nosuch')") == [(0, 0, None)]


def test_dead_letters_without_a_limit_are_all_of_them(db: Connection) -> None:
    make_queue(db)
    give_up(db, *"abc")
    assert len(rows(db, "select * from pgque.dlq_inspect('q', null)")) == 3


def test_an_event_given_up_without_a_reason_has_used_up_its_retries(db: Connection) -> None:
    make_queue(db, max_retries="0")
    send(db, "a")
    tick(db)
    nack = "select pgque.nack(m.batch_id, m) from pgque.receive('q', 'c') m"
    assert value(db, nack) == 1
    assert rows(db, "select dl_reason from pgque.dlq_inspect('q')") == [("max retries exceeded",)]


def test_an_event_that_is_a_dead_letter_already_is_given_up_once(db: Connection) -> None:
    make_queue(db)
    batch = open_batch(db, "a")
    for reason in ("first", "second"):
        call = "select pgque.event_dead(%s, 1, %s, now(), null, null, 't', 'a')"
        assert value(db, call, batch, reason) == 1
    assert rows(db, "select dl_reason from pgque.dlq_inspect('q')") == [("first",)]


@pytest.mark.parametrize("at", ["600", "now() + interval '10 minutes'"])
def test_an_event_that_waits_already_is_not_scheduled_again(db: Connection, at: str) -> None:
    make_queue(db)
    batch = open_batch(db, "a", "b")
    first, second = (event[0] for event in events(db, batch))
    assert value(db, f"select pgque.event_retry(%s, %s, {at})", batch, first) == 1
    due = rows(db, "select ev_id, ev_retry_after from pgque.retry_queue")
    assert value(db, "select pgque.event_retry(%s, %s, 0)", batch, first) == 0
    assert rows(db, "select ev_id, ev_retry_after from pgque.retry_queue") == due
    assert value(db, f"select pgque.event_retry(%s, %s, {at})", batch, second) == 1


def test_an_event_of_a_subconsumer_is_not_scheduled_again(db: Connection) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.register_subconsumer('q', 'shared', 'w')")
    send(db, "a")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'shared', 'w')")
    calls = [value(db, "select pgque.event_retry(%s, 1, 0)", batch) for _ in range(2)]
    assert calls == [1, 0]


def test_a_batch_that_is_not_open_is_a_row_of_nulls(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    batch = next_batch(db)
    assert rows(db, "select queue_name from pgque.get_batch_info(%s)", batch) == [("q",)]
    finish(db, batch)
    assert rows(db, "select * from pgque.get_batch_info(%s)", batch) == [(None,) * 9]


def test_events_per_second_are_those_of_the_last_20_ticks(db: Connection) -> None:
    make_queue(db, external_ticker="true")
    for tick_id, second, event_seq in [(10, 0, 0), (20, 10, 100), (25, 20, 100)]:
        at = f"2020-01-01 00:00:{second}"
        value(db, "select pgque.ticker('q', %s, %s, %s)", tick_id, at, event_seq)
    assert value(db, "select ev_per_sec from pgque.get_queue_info('q')") == 5


def test_stopping_where_nothing_is_scheduled_is_no_error(db: Connection) -> None:
    assert value(db, "select pgque.stop()::text") == ""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("next_batch('nosuch', 'c')", "queue not found"),
        ("send('nosuch', 'x'::text)", "queue not found"),
        ("next_batch('q', 'nobody')", "not subscriber to queue"),
        ("finish_batch(4711)", "batch not found"),
        ("ack(4711)", "batch not found"),
    ],
)
def test_errors_have_the_words_that_clients_match(db: Connection, call: str, words: str) -> None:
    make_queue(db)
    with pytest.raises(psycopg.Error) as caught:
        value(db, f"select pgque.{call}")
    assert words in str(caught.value).lower()


@pytest.mark.parametrize("call", ["force_tick", "force_next_tick"])
@pytest.mark.parametrize("setting", ["ticker_paused", "external_ticker"])
def test_no_tick_is_forced_where_none_may_come(db: Connection, call: str, setting: str) -> None:
    make_queue(db, **{setting: "true"})
    with refused("PQ017", "ticks not allowed"):
        value(db, f"select pgque.{call}('q')")


@pytest.mark.parametrize("call", ["subscribe('q', 'c#0/2')", "subscribe_slot('q', 'c#0', 0, 2)"])
def test_names_of_slots_are_no_consumers(db: Connection, call: str) -> None:
    make_queue(db)
    with refused("PQ005", "#"):
        value(db, f"select pgque.{call}::text")


def test_an_idempotent_event_has_its_key_in_extra2(db: Connection) -> None:
    make_queue(db)
    value(db, "select event_id from pgque.send_idem('q', 't', 'x'::text, 'key-1')")
    tick(db)
    assert [event[-3] for event in events(db, next_batch(db))] == ["key-1"]


def test_a_queue_is_closed_by_updating_its_row(db: Connection, another: Another) -> None:
    make_queue(db)
    writer = another()
    send(writer, "before")
    db.execute("update pgque.queue set queue_disable_insert = true")
    with refused("PQ006", "disable_insert"):
        send(writer, "closed")
    db.execute("update pgque.queue set queue_disable_insert = false")
    send(writer, "after")
    tick(db)
    assert drain(db) == ["before", "after"]


@pytest.mark.parametrize(
    "call",
    [
        "send('q', 'x'::text)",
        "send_batch('q', array['x'])",
        "insert_event('q', 't', 'x')",
        "insert_event('q', 't', 'x', null, null, null, null)",
        "insert_event_raw('q', null, null, null, null, 't', 'x', null, null, null, null)",
        "send_idem('q', 't', 'x'::text, 'k')",
    ],
)
def test_replication_sends_into_a_closed_queue(db: Connection, call: str) -> None:
    make_queue(db, disable_insert="true")
    with refused("PQ006"):
        rows(db, f"select pgque.{call}")
    db.execute("set session_replication_role = replica")
    rows(db, f"select pgque.{call}")
    db.execute("reset session_replication_role")
    tick(db)
    assert drain(db) == ["x"]


def test_a_writer_reads_what_pgq_lets_it_read(db: Connection) -> None:
    make_queue(db)
    db.execute("set role pgque_writer")
    for name in ("queue", "consumer", "subscription", "tick", "retry_queue", "event_template"):
        assert value(db, f"select count(*) from pgque.{name}") is not None


def test_a_reader_does_not_see_the_keys_of_producers(db: Connection) -> None:
    db.execute("set role pgque_reader")
    with refused("42501", "idem"):
        value(db, "select count(*) from pgque.idem")
