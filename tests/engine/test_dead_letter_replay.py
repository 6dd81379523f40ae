"""Dead letters replayed to the one consumer that gave them up."""

from typing import Any

import pytest

from tests.support.queues.dead_letters import give_up, give_up_next, inspect
from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused

REPLAY = "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')"


def test_a_replayed_dead_letter_comes_again_as_a_new_event_to_who_gave_it_up(
    db: Connection,
) -> None:
    db.make_queue(consumers=("c", "other"))
    give_up(db, "a")
    db.drain(consumer="other")
    replayed = db.value(REPLAY)
    db.tick()
    assert (inspect(db), db.drain(consumer="other")) == ([], [])
    # It has all its retries again.
    assert [(row[0], row[3], row[5]) for row in db.events(db.next_batch())] == [
        (replayed, None, "a")
    ]
    give_up_next(db, reason="still bad")
    assert db.rows("select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("a", "still bad")]


def test_a_dead_letter_of_an_open_batch_is_refused_since_it_may_be_given_up_again(
    db: Connection,
) -> None:
    db.make_queue(consumers=("c", "other"))
    db.publish("a")
    give_up_next(db, consumer="other")
    batch = db.next_batch()
    first = "array[(select min(ev_id) from pgque.event)]"
    give_up = f"select pgque.dead_letter_batch(%s, {first}, 'bad')"
    db.value(give_up, batch)
    # Only the consumer with the open batch waits.
    ((replayed, failed, error),) = db.rows("select * from pgque.dlq_replay_all('q')")
    assert (replayed, failed) == (1, 1)
    assert "not finished" in error
    with refused("PQ016", '"c" has not finished'):
        db.value(REPLAY)
    db.value(give_up, batch)
    db.finish(batch)
    db.value(REPLAY)
    assert (db.received(), db.drain(consumer="other")) == (["a"], ["a"])


def test_a_replay_takes_the_place_of_the_retry_of_its_event_and_of_no_other(
    db: Connection,
) -> None:
    db.make_queue("before")  # so that the subscription has another number than its consumer
    db.make_queue(consumers=("c", "other"))
    db.publish("a", "b")
    for consumer in ("c", "other"):
        batch = db.next_batch(consumer=consumer)
        ids = db.event_ids(batch)
        db.value("select pgque.nack_batch(%s, %s, '0')", batch, ids)
        if consumer == "c":
            sql = "select pgque.event_dead(%s, %s, 'bad', now(), null, null, 't', 'a')"
            db.value(sql, batch, ids[0])
        db.finish(batch)
    db.value(REPLAY)
    db.value("select pgque.maint_retry_events()")
    assert sorted(db.received()) == sorted(db.received(consumer="other")) == ["a", "b"]


def test_replaying_all_replays_all_of_this_queue(q: Connection) -> None:
    q.make_queue("other")
    give_up(q, "a", "b")
    give_up(q, "x", queue="other")
    answer = q.rows("select * from pgque.dlq_replay_all('q')")
    q.tick()
    assert (answer, q.drain(), inspect(q, "other")) == ([(2, 0, None)], ["a", "b"], ["x"])


def test_one_dead_letter_without_its_consumer_stays_and_the_others_go(db: Connection) -> None:
    db.make_queue(consumers=("c", "gone"))
    give_up(db, "a")
    give_up_next(db, consumer="gone")
    db.execute(
        "delete from pgque.subscription_base s using pgque.consumer c"
        " where c.co_id = s.sub_consumer and c.co_name = 'gone'"
    )
    ((replayed, failed, error),) = db.rows("select * from pgque.dlq_replay_all('q')")
    db.tick()
    assert (replayed, failed, db.drain(), inspect(db)) == (1, 1, ["a"], ["a"])
    assert "no consumer" in error
    with refused("PQ002", '"q"'):
        db.value(REPLAY)
    assert inspect(db) == ["a"]


@pytest.mark.parametrize("call", ["pgque.dlq_replay(1)", "pgque.dlq_replay_all('q')"])
def test_a_queue_that_takes_no_events_gets_no_replay(q: Connection, call: str) -> None:
    give_up(q, "a")
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", '"q"'):
        q.rows(f"select * from {call}")
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert inspect(q) == ["a"]
    q.rows(f"select * from {call}")
    assert inspect(q) == []


class TestReplayOfSome:
    @pytest.fixture
    def letters(self, db: Connection) -> Connection:
        """a and b of type t, given up as "torn 1" and "torn 2" 2 days and 1 day ago; c, now."""
        db.make_queue()
        for text, type_, reason, days in (
            ("a", "t", "torn 1", 2),
            ("b", "t", "torn 2", 1),
            ("c", "u", "late", 0),
        ):
            db.value("select pgque.send('q', %s, %s::text)", type_, text)
            db.tick()
            give_up_next(db, reason=reason)
            sql = "update pgque.dead_letter set dl_time = now() - make_interval(days => %s)"
            db.execute(f"{sql} where ev_data = %s".encode(), [days, text])
        return db

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ("i_reason => 'torn%'", "ab"),
            ("i_since => now() - '36 h'::interval, i_until => now() - '12 h'::interval", "b"),
            ("i_since => (select dl_time from pgque.dead_letter where ev_data = 'b')", "bc"),
            ("i_until => (select dl_time from pgque.dead_letter where ev_data = 'b')", "a"),
            (
                "i_reason => 'torn%', i_type => 't', i_since => now() - '36 h'::interval,"
                " i_limit => 5",
                "b",
            ),
            (
                "i_max_id => (select max_id from pgque.dlq_summary('q') where reason = 'torn 2')",
                "ab",
            ),
        ],
    )  # fmt: skip
    def test_goes_by_filters_the_oldest_first_and_leaves_the_rest(
        self, letters: Connection, filters: str, expected: str
    ) -> None:
        sql = f"select replayed, failed from pgque.dlq_replay_matching('q', {filters})"
        assert letters.rows(sql) == [(len(expected), 0)]
        assert letters.received() == list(expected)
        assert sorted(inspect(letters)) == sorted({"a", "b", "c"} - set(expected))

    def test_refuses_a_filter_that_makes_no_sense_and_heeds_no_limit(
        self, letters: Connection
    ) -> None:
        sql = "select replayed from pgque.dlq_replay_matching('q', {})"
        for filters in ("i_limit => -1", "i_since => now(), i_until => now() - interval '1 s'"):
            with refused("PQ005", "cannot replay"):
                letters.value(sql.format(filters))
        limits = ("i_limit => 0", "i_since => now(), i_until => now()", "i_limit => null")
        assert [letters.value(sql.format(each)) for each in limits] == [0, 0, 3]


def test_of_two_replays_of_one_dead_letter_one_is_refused(q: Connection) -> None:
    give_up(q, "a")
    letter = q.value("select dl_id from pgque.dlq_inspect('q')")

    def replay(session: Connection) -> Any:
        return session.value("select pgque.dlq_replay(%s)", letter)

    _, late = race(q, replay, replay)
    with refused("PQ010"):
        late.result()
    assert q.received() == ["a"]


def test_replaying_all_leaves_those_that_another_session_replays(q: Connection) -> None:
    give_up(q, "a", "b")
    with q.transaction():
        q.value("select pgque.dlq_replay(min(dl_id)) from pgque.dlq_inspect('q')")
        answer = q.another().rows("select * from pgque.dlq_replay_all('q')")
    q.tick()
    assert (answer, sorted(q.drain())) == ([(1, 0, None)], ["a", "b"])
