"""What code written for PgQ relies on: lenient calls, words in errors, and settings by UPDATE."""

import psycopg
import pytest

from tests.support.queues.slots import subscribe
from tests.support.queues.sql import Connection, refused


@pytest.mark.parametrize("queue", ["q", "nosuch"])
def test_ending_what_is_not_registered_returns_0(q: Connection, queue: str) -> None:
    for call in (
        "unsubscribe(%s, 'nobody')",
        "unregister_consumer(%s, 'nobody')",
        "unregister_subconsumer(%s, 'nobody', 'w')",
        "unsubscribe_subconsumer(%s, 'nobody', 'w')",
        "touch_subconsumer(%s, 'nobody', 'w')",
    ):
        assert q.value(f"select pgque.{call}", queue) == 0


@pytest.mark.parametrize("call", ["unregister_subconsumer", "touch_subconsumer"])
def test_a_subconsumer_that_is_not_registered_returns_0(q: Connection, call: str) -> None:
    q.value("select pgque.register_subconsumer('q', 'shared', 'w')")
    assert q.value(f"select pgque.{call}('q', 'shared', 'nobody')") == 0
    assert q.value(f"select pgque.{call}('q', 'shared', 'w')") == 1


def test_a_slot_that_is_not_subscribed_ends_in_silence(bare: Connection) -> None:
    subscribe(bare, 0, 2)
    for queue, slot in (("nosuch", 0), ("q", 1), ("q", 7)):
        assert bare.value("select pgque.unsubscribe_slot(%s, 'c', %s)::text", queue, slot) == ""
    assert bare.value("select count(*) from pgque.partition_slot_status where slot = 0") == 1


def test_what_is_not_there_has_no_row_and_needs_no_maintenance(q: Connection) -> None:
    q.publish("a")
    for call in (
        "get_queue_info('nosuch')",
        "get_consumer_info('nosuch')",
        "get_consumer_info('nosuch', 'c')",
        "get_consumer_info('q', 'nobody')",
        "dlq_inspect('nosuch')",
        "in_flight('nosuch')",
        "receive('q', 'c', null)",
        "receive_coop('q', 'shared', 'w', null)",
    ):
        assert q.rows(f"select * from pgque.{call}") == []
    q.value("select event_id from pgque.send_idem('q', 't', 'x'::text, 'k', '1 microsecond')")
    for call in ("maint_idem", "maint_rotate_tables_step1", "tune_storage", "dlq_purge"):
        assert q.value(f"select pgque.{call}('nosuch')") == 0
    assert q.value("select pgque.maint_idem('q')") == 1
    assert q.rows("select * from pgque.dlq_replay_all('nosuch')") == [(0, 0, None)]
    assert q.value("select pgque.stop()::text") == ""


def test_events_per_second_are_those_of_the_last_20_ticks(db: Connection) -> None:
    db.make_queue(external_ticker="true")
    for tick_id, second, event_seq in [(10, 0, 0), (20, 10, 100), (25, 20, 100)]:
        at = f"2020-01-01 00:00:{second}"
        db.value("select pgque.ticker('q', %s, %s, %s)", tick_id, at, event_seq)
    assert db.value("select ev_per_sec from pgque.get_queue_info('q')") == 5


def test_errors_have_the_words_that_clients_match(q: Connection) -> None:
    for call, words in (
        ("next_batch('nosuch', 'c')", "queue not found"),
        ("send('nosuch', 'x'::text)", "queue not found"),
        ("next_batch('q', 'nobody')", "not subscriber to queue"),
        ("finish_batch(4711)", "batch not found"),
        ("ack(4711)", "batch not found"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            q.value(f"select pgque.{call}")
        assert words in str(caught.value).lower()
    for call in ("subscribe('q', 'c#0/2')", "subscribe_slot('q', 'c#0', 0, 2)"):
        with refused("PQ005", "#"):  # the names of slots are no consumers'
            q.value(f"select pgque.{call}::text")


def test_a_queue_is_closed_by_updating_its_row(q: Connection) -> None:
    writer = q.another()
    writer.send("before")
    q.execute("update pgque.queue set queue_disable_insert = true")
    with refused("PQ006", "disable_insert"):
        writer.send("closed")
    q.execute("update pgque.queue set queue_disable_insert = false")
    writer.send("after")
    assert q.received() == ["before", "after"]
