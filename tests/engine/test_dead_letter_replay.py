"""Dead letters replayed to the one consumer that gave them up."""

from typing import Any

import pytest

from tests.support.dead_letters import give_up, give_up_next, inspect
from tests.support.queues import (
    Connection,
    drain,
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
from tests.support.races import Another, race

REPLAY = "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')"


def test_a_replayed_dead_letter_comes_again_as_a_new_event_to_who_gave_it_up(
    db: Connection,
) -> None:
    make_queue(db, consumers=("c", "other"))
    give_up(db, "a")
    drain(db, consumer="other")
    replayed = value(db, REPLAY)
    tick(db)
    assert (inspect(db), drain(db, consumer="other")) == ([], [])
    # It has all its retries again.
    assert [(row[0], row[3], row[5]) for row in events(db, next_batch(db))] == [
        (replayed, None, "a")
    ]
    give_up_next(db, reason="still bad")
    assert rows(db, "select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("a", "still bad")]


def test_a_dead_letter_that_is_not_there_is_refused(db: Connection) -> None:
    for number, word in ((4711, "4711"), (None, "null")):
        with refused("PQ010", word):
            value(db, "select pgque.dlq_replay(%s)", number)


def test_a_dead_letter_of_an_open_batch_is_refused_since_it_may_be_given_up_again(
    db: Connection,
) -> None:
    make_queue(db, consumers=("c", "other"))
    send(db, "a")
    tick(db)
    give_up_next(db, consumer="other")
    batch = next_batch(db)
    give_up = (
        "select pgque.dead_letter_batch(%s, array[(select min(ev_id) from pgque.event)], 'bad')"
    )
    value(db, give_up, batch)
    # Only the consumer with the open batch waits.
    ((replayed, failed, error),) = rows(db, "select * from pgque.dlq_replay_all('q')")
    assert (replayed, failed) == (1, 1)
    assert "not finished" in error
    with refused("PQ016", '"c" has not finished'):
        value(db, REPLAY)
    value(db, give_up, batch)
    finish(db, batch)
    value(db, REPLAY)
    tick(db)
    assert (drain(db), drain(db, consumer="other")) == (["a"], ["a"])


def test_replaying_all_replays_all_of_this_queue(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "other")
    give_up(db, "a", "b")
    give_up(db, "x", queue="other")
    answer = rows(db, "select * from pgque.dlq_replay_all('q')")
    tick(db)
    assert (answer, drain(db), inspect(db, "other")) == ([(2, 0, None)], ["a", "b"], ["x"])


def test_one_dead_letter_without_its_consumer_stays_and_the_others_go(db: Connection) -> None:
    make_queue(db, consumers=("c", "gone"))
    give_up(db, "a")
    give_up_next(db, consumer="gone")
    db.execute(
        "delete from pgque.subscription_base s using pgque.consumer c"
        " where c.co_id = s.sub_consumer and c.co_name = 'gone'"
    )
    ((replayed, failed, error),) = rows(db, "select * from pgque.dlq_replay_all('q')")
    tick(db)
    assert (replayed, failed, drain(db), inspect(db)) == (1, 1, ["a"], ["a"])
    assert "no consumer" in error
    with refused("PQ002", '"q"'):
        value(db, REPLAY)
    assert inspect(db) == ["a"]


@pytest.mark.parametrize("call", ["pgque.dlq_replay(1)", "pgque.dlq_replay_all('q')"])
def test_a_queue_that_takes_no_events_gets_no_replay(db: Connection, call: str) -> None:
    make_queue(db)
    give_up(db, "a")
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", '"q"'):
        rows(db, f"select * from {call}")
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert inspect(db) == ["a"]
    rows(db, f"select * from {call}")
    assert inspect(db) == []


class TestReplayOfSome:
    @pytest.fixture
    def letters(self, db: Connection) -> Connection:
        """a and b of type t, given up as "torn 1" and "torn 2" 2 days and 1 day ago; c, now."""
        make_queue(db)
        for text, type_, reason, days in (
            ("a", "t", "torn 1", 2),
            ("b", "t", "torn 2", 1),
            ("c", "u", "late", 0),
        ):
            value(db, "select pgque.send('q', %s, %s::text)", type_, text)
            tick(db)
            give_up_next(db, reason=reason)
            sql = "update pgque.dead_letter set dl_time = now() - make_interval(days => %s)"
            db.execute(f"{sql} where ev_data = %s".encode(), [days, text])
        return db

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ("i_reason => 'torn 1'", "a"),
            ("i_reason => 'torn%'", "ab"),
            ("i_type => 'u'", "c"),
            ("i_type => 't'", "ab"),
            ("i_since => now() - '36 h'::interval, i_until => now() - '12 h'::interval", "b"),
            ("i_limit => 2", "ab"),
            ("i_limit => null", "abc"),
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
        assert rows(letters, sql) == [(len(expected), 0)]
        tick(letters)
        assert drain(letters) == list(expected)
        assert sorted(inspect(letters)) == sorted({"a", "b", "c"} - set(expected))

    @pytest.mark.parametrize(
        "filters", ["i_limit => -1", "i_since => now(), i_until => now() - interval '1 s'"]
    )
    def test_refuses_a_filter_that_makes_no_sense(self, letters: Connection, filters: str) -> None:
        with refused("PQ005", "no replay"):
            value(letters, f"select replayed from pgque.dlq_replay_matching('q', {filters})")


def test_of_two_replays_of_one_dead_letter_one_is_refused(db: Connection, another: Another) -> None:
    make_queue(db)
    give_up(db, "a")
    letter = value(db, "select dl_id from pgque.dlq_inspect('q')")

    def replay(session: Connection) -> Any:
        return value(session, "select pgque.dlq_replay(%s)", letter)

    _, late = race(another, replay, replay)
    with refused("PQ010"):
        late.result()
    tick(db)
    assert drain(db) == ["a"]


def test_replaying_all_leaves_those_that_another_session_replays(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    give_up(db, "a", "b")
    with db.transaction():
        value(db, "select pgque.dlq_replay(min(dl_id)) from pgque.dlq_inspect('q')")
        answer = rows(another(), "select * from pgque.dlq_replay_all('q')")
    tick(db)
    assert (answer, sorted(drain(db))) == ([(1, 0, None)], ["a", "b"])
