"""What code written for PgQ relies on: lenient calls, words in errors, and settings by UPDATE."""

from tests.support.queues.slots import subscribe
from tests.support.queues.sql import Connection, refused


def test_ending_what_is_not_registered_returns_0(q: Connection) -> None:
    q.value("select pgque.register_subconsumer('q', 'shared', 'w')")
    for call in ("touch_subconsumer", "unregister_subconsumer", "unsubscribe_subconsumer"):
        for names in (("nosuch", "shared"), ("q", "nobody"), ("q", "shared")):
            assert q.value(f"select pgque.{call}(%s, %s, 'nobody')", *names) == 0
    assert q.value("select pgque.touch_subconsumer('q', 'shared', 'w')") == 1
    for queue in ("nosuch", "q"):
        assert q.value("select pgque.unsubscribe(%s, 'nobody')", queue) == 0


def test_a_slot_that_is_not_subscribed_ends_in_silence(bare: Connection) -> None:
    subscribe(bare, 0, 2)
    for queue, slot in (("nosuch", 0), ("q", 1), ("q", 7)):
        assert bare.value("select pgque.unsubscribe_slot(%s, 'c', %s)::text", queue, slot) == ""
    assert bare.value("select count(*) from pgque.partition_slot_status where slot = 0") == 1


def test_what_is_not_there_has_no_row_and_needs_no_maintenance(q: Connection) -> None:
    q.publish("a")
    for call in (
        "dlq_inspect('nosuch')",
        "in_flight('nosuch')",
        "receive('q', 'c', null)",
        "receive_coop('q', 'shared', 'w', null)",
    ):
        assert q.rows(f"select * from pgque.{call}") == []
    q.value("select event_id from pgque.send_idem('q', 't', 'x'::text, 'k', '1 microsecond')")
    for call in ("maint_idem", "dlq_purge"):
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


def test_a_queue_is_closed_by_updating_its_row(q: Connection) -> None:
    writer = q.another()
    writer.send("before")
    q.execute("update pgque.queue set queue_disable_insert = true")
    with refused("PQ006", "disable_insert"):
        writer.send("closed")
    q.execute("update pgque.queue set queue_disable_insert = false")
    writer.send("after")
    assert q.received() == ["before", "after"]
