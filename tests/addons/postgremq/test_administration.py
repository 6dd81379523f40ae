"""Topics, queues, dead letters, clean-up and listings, as PostgreMQ does it, and logged topics."""

import pytest

from tests.support.addons.messages import (
    ack,
    consume,
    drain,
    make_queue,
    publish,
    rotate,
    states,
    statistics,
)
from tests.support.queues.sql import Connection, refused


def test_topics_and_queues_are_listed_with_their_settings(db: Connection) -> None:
    for name in ("t", "a", "t"):
        assert db.value("select postgremq.create_topic(%s)", name) == name
    assert db.rows("select topic from postgremq.list_topics()") == [("a",), ("t",)]
    make_queue(db, "plain", max_attempts=3)
    create = "select postgremq.create_queue('own', 't', 0, true, 60)"
    db.value(create)
    listed = db.rows(
        "select queue_name, topic_name, max_delivery_attempts, exclusive, keep_alive_until > now()"
        " from postgremq.list_queues()"
    )
    assert listed == [("own", "t", 0, True, True), ("plain", "t", 3, False, None)]
    with refused("P0001", 'An exclusive queue with name "own" already exists'):
        db.value(create)


def test_exclusive_queue_gets_messages_only_while_it_is_alive(q: Connection) -> None:
    q.value("select postgremq.create_queue('own', 't', 0, true, 60)")
    publish(q, 1)
    q.execute(
        "update postgremq.queues set keep_alive_until = now() - interval '1 s' where exclusive"
    )
    publish(q, 2)
    assert consume(q, "own") == []
    assert q.value("select postgremq.extend_queue_keep_alive('own', '1 minute')") is True
    publish(q, 3)
    assert drain(q, "own") == [1, 3]
    assert q.value("select postgremq.extend_queue_keep_alive('q', '1 minute')") is False


def test_inactive_queues_are_deleted(q: Connection) -> None:
    for name in ("alive", "expired", "without"):
        q.value("select postgremq.create_queue(%s, 't', 0, true, 60)", name)
    publish(q, 1)
    q.execute("update postgremq.queues set keep_alive_until = null where name = 'without'")
    q.execute("update postgremq.queues set keep_alive_until = now() where name = 'expired'")
    q.rows("select postgremq.delete_inactive_queues()")
    assert q.rows("select name from postgremq.queues order by 1") == [("alive",), ("q",)]
    assert statistics(q, None)[3] == 2


def test_topic_with_messages_is_not_deleted(q: Connection) -> None:
    publish(q, 1)
    q.value("select postgremq.log_topic('t')")
    with refused("P0001", 'Cannot delete topic "t" because messages exist. Clean up the topic'):
        q.value("select postgremq.delete_topic('t')")
    q.value("select postgremq.clean_up_topic('t')")
    q.value("select postgremq.delete_topic('t')")
    assert q.rows("select * from postgremq.list_queues()") == []
    assert q.rows("select * from postgremq.topic_log") == []


def test_dead_letters_are_moved_listed_requeued_and_purged(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    make_queue(db, "endless")
    first, second, third = publish(db, 1, 2, 3)
    ack(db, consume(db, vt=0)[0])  # also a completed message
    assert [claim.id for claim in consume(db)] == [second]  # and one at work
    consume(db, "endless", limit=3)
    assert db.value("select postgremq.move_messages_to_dlq()") == 2
    listed = "select queue_name, message_id, retry_count from postgremq.list_dlq_messages()"
    assert db.rows(listed) == [("q", first, 1), ("q", second, 1)]
    assert states(db) == [(third, "pending", 0)]
    db.value("select postgremq.requeue_dlq_messages('q')")
    assert db.rows(listed) == []
    again = consume(db, limit=None)
    assert [(claim.id, claim.attempts) for claim in again] == [(third, 1), (first, 1), (second, 1)]
    assert db.value("select postgremq.move_messages_to_dlq()") == 3
    db.value("select postgremq.purge_dlq()")
    assert db.rows(listed) == []
    assert db.value("select count(*) from postgremq.messages") == 3


@pytest.mark.parametrize("is_rotated", [False, True])
def test_requeue_delivers_again_what_was_completed(db: Connection, is_rotated: bool) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    assert drain(db) == [1]
    if is_rotated:
        rotate(db)
    assert db.value("select postgremq.move_messages_to_dlq()") == 1
    assert states(db) == []
    db.value("select postgremq.requeue_dlq_messages('q')")
    assert drain(db) == [1]
    assert [row[1] for row in states(db)] == ["completed"]


def test_completed_messages_are_removed_by_age_but_stay_in_messages(q: Connection) -> None:
    old, new, _ = publish(q, 1, 2, 3)
    for claim in consume(q, limit=2):
        ack(q, claim)
    q.execute(
        "update postgremq.queue_messages set processed_at = now() - interval '25 hours'"
        " where message_id = %s",
        [old],
    )
    assert q.value("select postgremq.cleanup_completed_messages()") == 1
    assert [row[0] for row in states(q)] == [new, new + 1]
    assert q.value("select postgremq.cleanup_completed_messages(0)") == 1
    got = q.rows("select topic_name, payload from postgremq.get_message(%s)", old)
    assert got == [("t", 1)]


def test_messages_are_removed_from_one_queue(db: Connection) -> None:
    make_queue(db, "a")
    make_queue(db, "b")
    gone, _, _, _ = publish(db, 0, 1, 2, 3)
    db.rows("select postgremq.delete_queue_message('a', %s)", gone)
    (claim,) = consume(db, "a")
    assert claim.payload == 1
    ack(db, claim)
    (claim,) = consume(db, "a")
    assert [statistics(db, each) for each in ("a", None)] == [(1, 1, 1, 3), (5, 1, 1, 7)]
    db.value("select postgremq.clean_up_queue('a')")
    assert (statistics(db, "a"), statistics(db, "b")) == ((0, 0, 0, 0), (4, 0, 0, 4))
    with refused("P0001", "Ack failed"):
        ack(db, claim)
    publish(db, 4)
    assert (drain(db, "a"), drain(db, "b")) == ([4], [0, 1, 2, 3, 4])


def test_deleting_messages_removes_them_from_queues_and_dead_letters(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    make_queue(db, "other", "another")
    dead, gone, kept = publish(db, 1, 2, 3)
    consume(db)
    db.value("select postgremq.move_messages_to_dlq()")
    db.execute("delete from postgremq.messages where id in (%s, %s)", [dead, gone])
    assert db.rows("select * from postgremq.dead_letter_queue") == []
    assert states(db) == [(kept, "pending", 0)]
    publish(db, 5, topic="another")
    db.execute("delete from postgremq.topics where name = 't'")
    assert db.rows("select name from postgremq.queues") == [("other",)]
    assert db.rows("select payload from postgremq.messages") == [(5,)]
    db.rows("select postgremq.purge_all_messages()")
    assert statistics(db, None) == (0, 0, 0, 0)
    assert db.value("select count(*) from postgremq.queues") == 1


def test_deleted_queue_leaves_messages(q: Connection) -> None:
    publish(q, 1)
    delete = "delete from postgremq.queues where name = 'q'"
    for sql in (delete, "select postgremq.delete_queue('q')"):
        q.execute(sql.encode())
        assert q.rows("select * from postgremq.list_queues()") == []
        make_queue(q)
        assert drain(q) == []
        assert q.value("select count(*) from postgremq.messages") == 1


def test_raw_insert_publishes(q: Connection) -> None:
    q.execute("insert into postgremq.messages (topic_name, payload) values ('t', '1'), ('t', '2')")
    q.execute(
        "insert into postgremq.messages (topic_name, payload, published_at)"
        " values ('t', '0', now() - interval '1 day')"
    )
    assert drain(q) == [0, 1, 2]
    with refused("23503", 'Topic "no" does not exist'):
        q.execute("insert into postgremq.messages (topic_name, payload) values ('no', '1')")


def test_rows_of_queue_messages_can_be_changed(q: Connection) -> None:
    make_queue(q, "second")
    first, second = publish(q, 1, 2)
    sql = (
        "update postgremq.queue_messages set status = %s, vt = now()"
        " where queue_name = 'q' and message_id = %s"
    )
    q.execute(sql, ["completed", first])
    assert drain(q) == [2]
    rotate(q)  # completed messages are now in another table
    q.execute(sql, ["pending", second])
    assert drain(q) == [2]
    q.execute("delete from postgremq.queue_messages where queue_name = 'second'")
    assert statistics(q, "second") == (0, 0, 0, 0)
    add = "insert into postgremq.queue_messages (queue_name, message_id) values (%s, %s)"
    q.execute(add, ["second", second])
    assert drain(q, "second") == [2]
    for queue, id_, code in (("second", second, "23505"), ("no", 1, "23503"), ("q", 99, "23503")):
        with refused(code):
            q.execute(add, [queue, id_])
    with refused("23514", '"lost" is not a status'):
        q.execute(sql, ["lost", first])
    with refused("0A000", "cannot be changed"):
        q.execute("update postgremq.queue_messages set message_id = 77")


def test_topics_of_queues_and_messages_stay(q: Connection) -> None:
    q.value("select postgremq.create_topic('u')")
    publish(q, 1)
    publish(q, 2, topic="u")
    for change in ("queues set topic_name = 'u'", "topics set name = 'v' where name = 'u'"):
        with refused("0A000", "cannot be changed"):
            q.execute(f"update postgremq.{change}".encode())
    q.value("select postgremq.clean_up_topic('t')")
    assert states(q) == []


@pytest.mark.parametrize("kind", ["pending", "processing", "dead", "forced"])
def test_uninstall_is_refused_while_messages_are_not_finished(db: Connection, kind: str) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    if kind != "pending":
        consume(db, vt=0 if kind == "dead" else 60)
    if kind == "dead":
        db.value("select postgremq.move_messages_to_dlq()")
    with refused("PQ020", '"q"'):
        db.rows("select postgremq.uninstall()")
    drain(db)
    if kind == "processing":
        db.value("select postgremq.clean_up_queue('q')")
    db.rows("select postgremq.purge_dlq()")
    db.rows("select postgremq.uninstall(%s)", kind == "forced")
    assert db.value("select to_regnamespace('postgremq')") is None
    assert db.rows("select * from pgque.addon where addon_name = 'postgremq'") == []


def events(db: Connection) -> list[tuple[str, str, str, bool]]:
    db.tick("postgremq.t")
    batch = db.next_batch("postgremq.t")
    if batch is None:
        return []
    sql = "select ev_type, ev_data, ev_extra1, ev_extra2 is null from pgque.get_batch_events(%s)"
    got = db.rows(sql, batch)
    db.finish(batch)
    return sorted(got)  # type: ignore[arg-type]


def test_messages_of_a_logged_topic_are_events_from_then_on(q: Connection) -> None:
    publish(q, 1)
    for _ in range(2):
        assert q.value("select postgremq.log_topic('t')") == "postgremq.t"
    q.value("select pgque.register_consumer('postgremq.t', 'c')")
    (two,) = publish(q, 2)
    with q.transaction(force_rollback=True):
        publish(q, 3)
    delayed = "select postgremq.publish_message('t', '4', now() + interval '1 hour')"
    four = q.value(delayed)
    assert events(q) == [("message", "2", str(two), True), ("message", "4", str(four), False)]
    assert drain(q) == [1, 2]
    for _ in range(2):
        q.rows("select postgremq.unlog_topic('t')")
    publish(q, 5)
    assert events(q) == []
    with refused("P0001", 'Topic "no" does not exist'):
        q.value("select postgremq.log_topic('no')")
    q.rows("select postgremq.unlog_topic('no')")


def test_publishing_without_the_log_fails_until_the_topic_is_logged_or_not(q: Connection) -> None:
    log, unlog = "select postgremq.log_topic('t')", "select postgremq.unlog_topic('t')"
    for way in (log, unlog):
        q.value(log)
        q.value("select pgque.drop_queue('postgremq.t')")
        assert q.value("select postgremq.logged_as('t')") is None
        with refused("PQ001", 'queue "postgremq.t" does not exist', log, unlog):
            publish(q, 1)
        q.rows(way)
        publish(q, 2)
        assert drain(q) == [2]
