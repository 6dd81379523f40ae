"""A topic as a queue of pgque: each message is also an event, in the same transaction."""

from tests.support.messages import drain, make_queue, publish
from tests.support.queues import Connection, finish, next_batch, refused, rows, tick, value


def events(db: Connection) -> list[tuple[str, str, str, bool]]:
    tick(db, "postgremq.t")
    batch = next_batch(db, "postgremq.t")
    if batch is None:
        return []
    sql = "select ev_type, ev_data, ev_extra1, ev_extra2 is null from pgque.get_batch_events(%s)"
    got = rows(db, sql, batch)
    finish(db, batch)
    return sorted(got)  # type: ignore[arg-type]


def test_messages_are_events_from_then_on(db: Connection) -> None:
    make_queue(db)
    publish(db, 1)
    for _ in range(2):
        assert value(db, "select postgremq.log_topic('t')") == "postgremq.t"
    value(db, "select pgque.register_consumer('postgremq.t', 'c')")
    (two,) = publish(db, 2)
    with db.transaction(force_rollback=True):
        publish(db, 3)
    delayed = "select postgremq.publish_message('t', '4', now() + interval '1 hour')"
    four = value(db, delayed)
    assert events(db) == [("message", "2", str(two), True), ("message", "4", str(four), False)]
    assert drain(db) == [1, 2]
    for _ in range(2):
        rows(db, "select postgremq.unlog_topic('t')")
    publish(db, 5)
    assert events(db) == []


def test_publishing_without_the_log_fails_until_the_topic_is_logged_or_not(db: Connection) -> None:
    make_queue(db)
    log, unlog = "select postgremq.log_topic('t')", "select postgremq.unlog_topic('t')"
    for way in (log, unlog):
        value(db, log)
        value(db, "select pgque.drop_queue('postgremq.t')")
        assert value(db, "select postgremq.logged_as('t')") is None
        with refused("PQ001", 'queue "postgremq.t" does not exist', log, unlog):
            publish(db, 1)
        rows(db, way)
        publish(db, 2)
        assert drain(db) == [2]


def test_unknown_topic_is_not_logged(db: Connection) -> None:
    with refused("P0001", 'Topic "no" does not exist'):
        value(db, "select postgremq.log_topic('no')")
    rows(db, "select postgremq.unlog_topic('no')")


def test_deleted_topic_is_no_longer_logged(db: Connection) -> None:
    make_queue(db)
    value(db, "select postgremq.log_topic('t')")
    rows(db, "select postgremq.delete_topic('t')")
    assert rows(db, "select * from postgremq.topic_log") == []
