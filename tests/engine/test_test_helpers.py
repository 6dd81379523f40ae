"""The helpers for tests of applications: send, consume, and two assertions."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.dead_letters import give_up
from tests.support.queues import (
    Another,
    Connection,
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

FAILED = "P0004"
CONSUME = "select payload from pgque.test_consume('q', 'c')"


def assert_empty(db: Connection) -> None:
    assert value(db, "select pgque.assert_empty('q')") is True


@contextmanager
def not_empty(db: Connection, *words: str) -> Iterator[None]:
    """The queue is not empty before the block, and empty after it."""
    with refused(FAILED, *words):
        value(db, "select pgque.assert_empty('q')")
    yield
    assert_empty(db)


def test_events_that_were_sent_are_consumed_at_once_in_order_and_acked(q: Connection) -> None:
    sent = value(q, "select pgque.test_send('q', '{\"a\": 1}')")
    found = rows(q, "select msg_id, type, payload from pgque.test_consume('q', 'c')")
    assert found == [(sent, "test", '{"a": 1}')]
    assert_empty(q)
    send(q, "a", "b", "c")
    assert rows(q, CONSUME) == [("a",), ("b",), ("c",)]
    with refused(FAILED, '"c"', '"q"'):
        rows(q, CONSUME)


def test_another_type_than_expected_fails_and_acks_nothing(q: Connection) -> None:
    value(q, "select pgque.test_send('q', 'order', '1')")
    with refused(FAILED, '"order"', '"refund"'):
        rows(q, "select pgque.test_consume('q', 'c', 'refund')")
    assert value(q, "select payload from pgque.test_consume('q', 'c', 'order')") == "1"


class TestEmpty:
    def test_an_event_counts_unticked_and_in_a_batch(self, q: Connection, another: Another) -> None:
        other = another()
        with other.transaction(force_rollback=True):
            send(other, "undone")
        assert_empty(q)
        send(q, "a", "b")
        with not_empty(q, '"q"', '"c"', "2 events"):
            batch = open_batch(q)
            with not_empty(q, "2 events"):
                finish(q, batch)

    def test_an_event_in_a_workers_batch_counts_until_it_is_finished(self, db: Connection) -> None:
        make_queue(db, consumers=())
        batches = []
        for worker in ("w1", "w2"):
            value(db, "select pgque.register_subconsumer('q', 'c', %s)", worker)
        for worker in ("w1", "w2"):
            send(db, "a")
            tick(db)
            batches.append(value(db, "select pgque.next_batch('q', 'c', %s)", worker))
        finish(db, batches[1])
        with not_empty(db, '"c.w1" has 1 events'):
            finish(db, batches[0])

    def test_an_event_that_comes_again_counts_for_its_own_consumer(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "z"))
        send(db, "a")
        tick(db)
        for consumer in ("c", "z"):
            batch = next_batch(db, consumer=consumer)
            if consumer == "c":
                value(db, "select pgque.batch_retry(%s, 0)", batch)
            finish(db, batch)
        with refused(FAILED, "0 events", "1 to be delivered again"):
            value(db, "select pgque.assert_empty('q')")
        value(db, "select pgque.maint_retry_events()")
        with not_empty(db, '"c" has 1 events'):
            rows(db, CONSUME)

    def test_a_slot_has_only_the_events_of_its_keys(self, db: Connection) -> None:
        make_queue(db, consumers=())
        value(db, "select pgque.subscribe_slots('q', 'c', 3)")
        for slot in range(3):
            value(db, "select pgque.claim_slot('q', 'c', %s, 'me')", slot)
        for key in "abcdefgh":
            value(db, "select pgque.send('q', 't', 'x'::text, %s)", key)
        receive = "select * from pgque.receive_partitioned('q', 'c', %s, 3, 'me')"
        for slots in (range(3), (0,)):
            tick(db)
            for slot in slots:
                rows(db, receive, slot)
                with refused(FAILED, f'"c#{slot}/3" has '):
                    value(db, "select pgque.assert_empty('q')")
                while rows(db, receive, slot):
                    value(db, "select pgque.ack_partitioned('q', 'c', %s, 3, 'me')", slot)
            assert_empty(db)
            send(db, "no key, so of slot 0")

    def test_an_event_that_waits_for_its_time_counts(self, q: Connection) -> None:
        entry = value(q, "select pgque.send_at('q', 't', 'x'::text, now() + interval '1 hour')")
        with not_empty(q, "1 events wait for their time"):
            value(q, "select pgque.cancel_scheduled(%s)", entry)


def test_dead_letters_are_counted_with_the_newest_reason(q: Connection) -> None:
    assert value(q, "select pgque.assert_dlq_empty('q')") is True
    give_up(q, "a", reason="bad")
    give_up(q, "b", reason="torn")
    with refused(FAILED, '"q" has 2 dead letters', "torn"):
        value(q, "select pgque.assert_dlq_empty('q')")


def test_an_unknown_queue_is_named(db: Connection) -> None:
    for call in (
        "test_send('nosuch', '1')",
        "test_consume('nosuch', 'c')",
        "assert_empty('nosuch')",
        "assert_dlq_empty('nosuch')",
    ):
        with refused("PQ001", '"nosuch"'):
            db.execute(f"select pgque.{call}".encode())
