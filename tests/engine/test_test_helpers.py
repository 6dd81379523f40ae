"""The helpers for tests of applications: send, consume, and two assertions."""

import pytest

from tests.support.queues import (
    Connection,
    connect,
    events,
    finish,
    make_queue,
    next_batch,
    refused,
    rows,
    send,
    tick,
    value,
)

FAILED = "P0004"


def give_up(db: Connection, text: str) -> None:
    send(db, text)
    tick(db)
    batch = next_batch(db)
    ids = [row[0] for row in events(db, batch)]
    value(db, "select pgque.dead_letter_batch(%s, %s, 'torn')", batch, ids)
    finish(db, batch)


def test_an_event_that_was_sent_is_consumed_at_once(db: Connection) -> None:
    make_queue(db)
    sent = value(db, "select pgque.test_send('q', '{\"a\": 1}')")
    assert rows(db, "select msg_id, type, payload from pgque.test_consume('q', 'c')") == [
        (sent, "test", '{"a": 1}')
    ]


def test_consuming_acks(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.test_send('q', '1')")
    rows(db, "select pgque.test_consume('q', 'c')")
    assert value(db, "select pgque.assert_empty('q')") is True


def test_all_events_of_the_batch_come_in_order(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b", "c")
    consumed = rows(db, "select payload from pgque.test_consume('q', 'c')")
    assert consumed == [("a",), ("b",), ("c",)]


def test_the_expected_type_is_consumed(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.test_send('q', 'order', '1')")
    assert value(db, "select payload from pgque.test_consume('q', 'c', 'order')") == "1"


def test_another_type_than_expected_fails_and_acks_nothing(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.test_send('q', 'order', '1')")
    with refused(FAILED, '"order"', '"refund"'):
        rows(db, "select pgque.test_consume('q', 'c', 'refund')")
    assert value(db, "select payload from pgque.test_consume('q', 'c')") == "1"


def test_no_event_fails(db: Connection) -> None:
    make_queue(db)
    with refused(FAILED, '"c"', '"q"'):
        rows(db, "select pgque.test_consume('q', 'c')")


def test_a_queue_without_events_is_empty(db: Connection) -> None:
    make_queue(db)
    assert value(db, "select pgque.assert_empty('q')") is True


def test_an_event_before_its_tick_counts(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b")
    with refused(FAILED, '"q"', '"c"', "2 events"):
        value(db, "select pgque.assert_empty('q')")


def test_an_event_in_an_open_batch_counts(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    batch = next_batch(db)
    with refused(FAILED, "1 events"):
        value(db, "select pgque.assert_empty('q')")
    finish(db, batch)
    assert value(db, "select pgque.assert_empty('q')") is True


def test_an_event_in_a_workers_batch_counts_until_it_is_finished(db: Connection) -> None:
    make_queue(db, consumers=())
    for worker in ("w1", "w2"):
        value(db, "select pgque.register_subconsumer('q', 'c', %s)", worker)
    send(db, "a")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', 'w1')")
    send(db, "b")
    tick(db)
    finish(db, value(db, "select pgque.next_batch('q', 'c', 'w2')"))
    with refused(FAILED, '"c.w1" has 1 events'):
        value(db, "select pgque.assert_empty('q')")
    finish(db, batch)
    assert value(db, "select pgque.assert_empty('q')") is True


def test_an_event_that_comes_again_counts(db: Connection) -> None:
    make_queue(db)
    (event,) = send(db, "a")
    tick(db)
    batch = next_batch(db)
    value(db, "select pgque.nack_batch(%s, array[%s::bigint], '1 hour')", batch, event)
    finish(db, batch)
    with refused(FAILED, "0 events", "1 to be delivered again"):
        value(db, "select pgque.assert_empty('q')")


def test_a_retry_of_one_consumer_is_not_pending_for_another(db: Connection) -> None:
    make_queue(db, consumers=("c", "z"))
    send(db, "a")
    tick(db)
    for consumer in ("c", "z"):
        batch = next_batch(db, consumer=consumer)
        if consumer == "c":
            value(db, "select pgque.batch_retry(%s, 0)", batch)
        finish(db, batch)
    value(db, "select pgque.maint_retry_events()")
    with refused(FAILED, '"c" has 1 events'):
        value(db, "select pgque.assert_empty('q')")
    rows(db, "select pgque.test_consume('q', 'c')")
    assert value(db, "select pgque.assert_empty('q')") is True


def test_a_slot_has_only_the_events_of_its_keys(db: Connection) -> None:
    make_queue(db, consumers=())
    for slot in range(3):
        value(db, "select pgque.subscribe_slot('q', 'c', %s, 3)::text", slot)
    for key in "abcdefgh":
        value(db, "select pgque.send('q', 't', 'x'::text, %s)", key)
    value(db, "select pgque.send('q', 'x'::text)")
    tick(db)
    for slot in range(3):
        with refused(FAILED, f'"c#{slot}/3"'):
            value(db, "select pgque.assert_empty('q')")
        value(db, "select pgque.claim_slot('q', 'c', %s, 'me')", slot)
        while rows(db, "select * from pgque.receive_partitioned('q', 'c', %s, 3, 'me')", slot):
            value(db, "select pgque.ack_partitioned('q', 'c', %s, 3, 'me')", slot)
    assert value(db, "select pgque.assert_empty('q')") is True


def test_a_slot_without_events_of_its_keys_is_empty_at_once(db: Connection) -> None:
    make_queue(db, consumers=())
    for slot in range(2):
        value(db, "select pgque.subscribe_slot('q', 'c', %s, 2)::text", slot)
    send(db, "no key, so of slot 0")
    tick(db)
    value(db, "select pgque.claim_slot('q', 'c', 0, 'me')")
    rows(db, "select * from pgque.receive_partitioned('q', 'c', 0, 2, 'me')")
    with refused(FAILED, '"c#0/2" has 1 events'):
        value(db, "select pgque.assert_empty('q')")
    value(db, "select pgque.ack_partitioned('q', 'c', 0, 2, 'me')")
    assert value(db, "select pgque.assert_empty('q')") is True


def test_an_event_that_waits_for_its_time_counts(db: Connection) -> None:
    make_queue(db)
    entry = value(db, "select pgque.send_at('q', 't', 'x'::text, now() + interval '1 hour')")
    with refused(FAILED, "1 events wait for their time"):
        value(db, "select pgque.assert_empty('q')")
    value(db, "select pgque.cancel_scheduled(%s)", entry)
    assert value(db, "select pgque.assert_empty('q')") is True


def test_an_event_that_was_rolled_back_is_not_there(db: Connection, database_url: str) -> None:
    make_queue(db)
    with connect(database_url) as other, other.transaction(force_rollback=True):
        send(other, "a")
    assert value(db, "select pgque.assert_empty('q')") is True


def test_a_queue_without_dead_letters_passes(db: Connection) -> None:
    make_queue(db)
    assert value(db, "select pgque.assert_dlq_empty('q')") is True


def test_dead_letters_are_counted_with_the_newest_reason(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    give_up(db, "b")
    with refused(FAILED, '"q" has 2 dead letters', "torn"):
        value(db, "select pgque.assert_dlq_empty('q')")


@pytest.mark.parametrize(
    "call",
    [
        "pgque.test_send('nosuch', '1')",
        "pgque.test_consume('nosuch', 'c')",
        "pgque.assert_empty('nosuch')",
        "pgque.assert_dlq_empty('nosuch')",
    ],
)
def test_an_unknown_queue_is_named(db: Connection, call: str) -> None:
    with refused("PQ001", '"nosuch"'):
        db.execute(f"select {call}".encode())
