"""Publishing, claiming and answering messages, as PostgreMQ does it."""

import json
from typing import Any
from uuid import UUID

from tests.support.addons.messages import (
    ack,
    consume,
    drain,
    make_queue,
    nack,
    publish,
    release,
    set_limit,
    states,
    statistics,
)
from tests.support.queues.sql import Connection, refused

RAISED = "P0001"


def test_message_reaches_each_queue_that_its_topic_has_at_publication(db: Connection) -> None:
    make_queue(db, "a")
    make_queue(db, "b")
    make_queue(db, "other", topic="another")
    (id_,) = publish(db, 5)
    for queue in ("a", "b"):
        (claim,) = consume(db, queue)
        assert (claim.queue, claim.id, claim.payload, claim.attempts) == (queue, id_, 5, 1)
    make_queue(db, "late")
    publish(db, 6)
    assert (drain(db, "a"), drain(db, "late"), consume(db, "other")) == ([6], [6], [])


def test_messages_come_in_order_and_a_limit_of_null_means_all(q: Connection) -> None:
    publish(q, *range(300))
    claims = consume(q, vt=0, limit=None)
    assert [claim.payload for claim in claims] == list(range(300))
    assert drain(q) == list(range(300))
    assert statistics(q) == (0, 0, 300, 300)


def test_message_comes_again_only_after_its_visibility_time(q: Connection) -> None:
    publish(q, 1)
    (first,) = consume(q, vt=0)
    (second,) = consume(q, vt=60)
    assert (first.id, second.attempts, consume(q)) == (second.id, 2, [])
    assert first.token != second.token
    # Clients may keep tokens in columns of type uuid.
    assert [str(UUID(claim.token)) for claim in (first, second)] == [first.token, second.token]


def test_a_late_ack_counts_if_nobody_has_consumed_the_message_again(
    q: Connection,
) -> None:
    publish(q, 1, 2)
    first, second = consume(q, vt=-1, limit=2)
    ack(q, first)
    (again,) = consume(q)
    assert again.id == second.id
    with refused(RAISED, "Ack failed: message not found, not in processing state, or token"):
        ack(q, second)
    ack(q, again)
    with refused(RAISED, "Ack failed"):
        ack(q, again)


def test_answers_need_the_token_of_the_claim(q: Connection) -> None:
    publish(q, 1)
    (claim,) = consume(q)
    for token in ("x", "", None):
        for name, text in (("ack", "Ack failed"), ("nack", "Nack failed"), ("release", "Release")):
            with refused(RAISED, text, "token mismatch"):
                q.rows(f"select postgremq.{name}_message('q', %s, %s)", claim.id, token)
        with refused(RAISED, "Extend lock failed: message not in processing state or token"):
            q.rows("select postgremq.set_vt('q', %s, %s, 5)", claim.id, token)
    with refused(RAISED, "Ack failed"):
        ack(q, claim._replace(queue="elsewhere"))
    ack(q, claim)


def test_nack_keeps_the_attempt_and_may_delay(q: Connection) -> None:
    publish(q, 1, 2, 3, 4)
    one, two, three = consume(q, limit=3)
    for claim in (three, one, two):
        nack(q, claim)
    again = consume(q, limit=None)  # by time of publication
    assert [(claim.payload, claim.attempts) for claim in again] == [(1, 2), (2, 2), (3, 2), (4, 1)]
    nack(q, again[0], "now() + interval '1 hour'")
    assert consume(q) == []
    assert states(q)[0] == (one.id, "pending", 2)
    with refused(RAISED, "Nack failed: message not in processing state or token mismatch"):
        nack(q, again[0])


def test_release_gives_the_attempt_back(db: Connection) -> None:
    make_queue(db, max_attempts=1)
    publish(db, 1)
    for _ in range(3):
        (claim,) = consume(db)
        assert claim.attempts == 1
        release(db, claim)
    with refused(RAISED, "Release message failed: message not in processing state or token"):
        release(db, claim)


def test_messages_come_in_the_order_in_which_they_became_visible(q: Connection) -> None:
    publish(q, 1, 2)
    (claim,) = consume(q)
    nack(q, claim)
    publish(q, 3)
    assert [consume(q)[0].payload for _ in range(3)] == [2, 1, 3]


def test_no_delivery_beyond_the_limit_of_attempts(db: Connection) -> None:
    make_queue(db, max_attempts=2)
    publish(db, 1)
    assert [len(consume(db, vt=0)) for _ in range(4)] == [1, 1, 0, 0]
    set_limit(db, 3)
    assert [claim.attempts for claim in consume(db)] == [3]


def test_delayed_message_is_invisible_until_its_time(q: Connection) -> None:
    sql = "select postgremq.publish_message('t', '1', now() + %s::interval)"
    q.value(sql, "1 hour")
    soon = q.value(sql, "1 millisecond")
    while not (claims := consume(q)):
        pass
    assert [claim.id for claim in claims] == [soon]
    assert consume(q) == []


def test_set_vt_extends_a_claim_while_it_is_not_over(q: Connection) -> None:
    publish(q, 1, 2, 3)
    first, second, done = consume(q, limit=3)
    ack(q, done)
    set_vt = "select postgremq.set_vt('q', %s, %s, %s) > now() + interval '59 minutes'"
    assert q.value(set_vt, first.id, first.token, 3600) is True
    ids = [first.id, second.id, done.id, first.id]
    tokens = [first.token, "wrong", done.token, first.token]
    batch = "select message_id, vt > now() from postgremq.set_vt_batch('q', %s, %s::varchar[], 900)"
    assert q.rows(batch, ids, tokens) == [(first.id, True)]
    assert q.value(set_vt, second.id, second.token, 0) is False
    with refused(RAISED, "Extend lock failed"):
        q.value(set_vt, second.id, second.token, 10)
    assert [claim.id for claim in consume(q)] == [second.id]
    ack(q, first)


def test_next_visible_time_is_the_earliest_of_deliverable_messages(db: Connection) -> None:
    make_queue(db, max_attempts=2)
    sql = "select postgremq.get_next_visible_time('q')"
    assert db.value(sql) is None
    publish(db, 1)
    (claim,) = consume(db)
    assert db.value(sql) == claim.vt
    db.value("select postgremq.publish_message('t', '2', now() + interval '5 seconds')")
    assert db.value(f"select ({sql}) < %s", claim.vt)
    db.rows("select postgremq.delete_queue_message('q', %s)", claim.id + 1)
    nack(db, claim)
    consume(db)
    assert db.value(sql) is None  # both attempts are used up


def told(db: Connection) -> list[dict[str, Any]]:
    """Returns the notifications of this session's own statements, which arrive before these end."""
    return [json.loads(note.payload) for note in db.notifies(timeout=0.1)]


def test_notifications_carry_event_queues_and_time(db: Connection) -> None:
    make_queue(db, "a")
    make_queue(db, "b")
    db.execute("listen postgremq_events")
    db.value("select postgremq.publish_message('t', '1', '2100-01-01 00:00+00')")
    (claim,) = publish(db, 2) and consume(db, "a")
    nack(db, claim, "'2100-01-02 00:00+00'")
    publish(db, 3)
    (claim,) = consume(db, "a")
    release(db, claim)
    db.value("select postgremq.create_topic('empty')")
    publish(db, 4, topic="empty")
    first, _, nacked, _, released, empty = told(db)
    assert (first["event"], sorted(first["queues"])) == ("message_published", ["a", "b"])
    assert first["vt"].startswith("2100-01-01")
    assert (nacked["event"], nacked["queues"]) == ("message_nacked", ["a"])
    assert nacked["vt"].startswith("2100-01-02")
    assert released == {"event": "message_released", "queues": ["a"]}
    assert (empty["event"], empty["queues"]) == ("message_published", None)


def test_long_list_of_queues_is_told_in_several_notifications(db: Connection) -> None:
    names = [f"{number:03}" + "n" * 240 for number in range(40)]
    for name in names:
        make_queue(db, name)
    db.execute("listen postgremq_events")
    publish(db, 1)
    assert sorted(queue for note in told(db) for queue in note["queues"]) == names


def test_bad_input_is_refused(q: Connection) -> None:
    for sql, code, words in (
        ("publish_message('no', '1')", RAISED, 'Topic "no" does not exist'),
        ("publish_message(null, '1')", RAISED, "does not exist"),
        ("publish_message('t', null)", "23502", "payload"),
        ("consume_message('q', null)", "22004", "p_vt is null"),
        ("consume_message('q', 1, -1)", "2201W", "p_limit is -1"),
        ("set_vt_batch('q', '{1}', '{x}', null)", "22004", "p_vt is null"),
        ("create_topic(null)", "23502", "name"),
        ("create_queue(null, 't')", "23502", "name"),
        ("create_queue('new', 'no')", "23503", 'Topic "no" does not exist'),
        ("create_queue('new', 't', -1)", "22023", "p_max_attempts is -1"),
        ("create_queue('q', 't')", "23505", 'A queue with name "q" already exists'),
    ):
        with refused(code, words):
            q.rows(f"select * from postgremq.{sql}")


def test_unknown_queue_has_no_messages(db: Connection) -> None:
    for queue in ("no", None, ""):
        assert db.rows("select * from postgremq.consume_message(%s, 1)", queue) == []
        assert db.value("select postgremq.get_next_visible_time(%s)", queue) is None
        for name in ("delete_queue", "clean_up_queue", "requeue_dlq_messages", "delete_topic"):
            db.rows(f"select postgremq.{name}(%s)", queue)
        assert db.value("select postgremq.extend_queue_keep_alive(%s, '1 s')", queue) is False
