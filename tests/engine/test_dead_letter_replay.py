"""Dead letters replayed to the one consumer that gave them up."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.dead_letters import give_up, give_up_next, inspect
from tests.support.queues import (
    Connection,
    drain,
    events,
    make_queue,
    next_batch,
    refused,
    rows,
    tick,
    value,
    wait_until_blocked,
)


def test_a_replayed_dead_letter_comes_again(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    assert (drain(db), inspect(db)) == (["a"], [])


def test_a_replay_goes_only_to_the_consumer_that_gave_up(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    give_up(db, "a")
    drain(db, consumer="other")
    value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    assert (drain(db), drain(db, consumer="other")) == (["a"], [])


def test_a_replay_returns_the_new_events_id(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    replayed = value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    assert [row[0] for row in events(db, next_batch(db))] == [replayed]


def test_a_replayed_event_has_all_its_retries_again(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    assert [row[3] for row in events(db, next_batch(db))] == [None]


def test_a_replayed_event_lives_as_long_as_a_new_one(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    db.execute("update pgque.dead_letter set ev_time = now() - interval '1 day'")
    value(db, "select pgque.set_queue_config('q', 'event_ttl', '1 hour')")
    value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    assert drain(db) == ["a"]


def test_a_replayed_event_can_be_given_up_again(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    tick(db)
    give_up_next(db, reason="still bad")
    assert rows(db, "select ev_data, dl_reason from pgque.dlq_inspect('q')") == [("a", "still bad")]


@pytest.mark.parametrize("number", [4711, None])
def test_a_dead_letter_that_is_not_there_is_refused(db: Connection, number: int | None) -> None:
    with refused("PQ010", "4711" if number else "null"):
        value(db, "select pgque.dlq_replay(%s)", number)


def test_replaying_all_replays_all_of_this_queue(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "other")
    give_up(db, "a", "b")
    give_up(db, "x", queue="other")
    answer = rows(db, "select * from pgque.dlq_replay_all('q')")
    tick(db)
    assert (answer, drain(db), inspect(db, "other")) == ([(2, 0, None)], ["a", "b"], ["x"])


def test_one_dead_letter_that_cannot_be_replayed_stays_and_the_others_go(db: Connection) -> None:
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


def test_a_dead_letter_without_its_consumer_is_refused_and_kept(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a")
    db.execute("delete from pgque.subscription_base")
    with refused("PQ002", '"q"'):
        value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
    assert inspect(db) == ["a"]


@pytest.mark.parametrize("call", ["pgque.dlq_replay(1)", "pgque.dlq_replay_all('q')"])
def test_a_queue_that_takes_no_events_gets_no_replay(db: Connection, call: str) -> None:
    make_queue(db)
    give_up(db, "a")
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", '"q"'):
        db.execute(f"select * from {call}".encode())
    value(db, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert inspect(db) == ["a"]
    db.execute(f"select * from {call}".encode())
    assert inspect(db) == []


def replay(db: Connection, **filters: Any) -> list[str]:
    """Replays what fits and returns the payloads that came again."""
    named = ", ".join(f"{name} => %s" for name in filters)
    sql = f"select replayed, failed from pgque.dlq_replay_matching('q', {named})"
    ((replayed, failed),) = rows(db, sql, *filters.values())
    tick(db)
    payloads = drain(db)
    assert (len(payloads), failed) == (replayed, 0)
    return payloads


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
            db.execute(
                "update pgque.dead_letter set dl_time = now() - make_interval(days => %s)"
                " where ev_data = %s",
                [days, text],
            )
        return db

    def test_by_a_reason(self, letters: Connection) -> None:
        assert replay(letters, i_reason="torn 1") == ["a"]

    def test_by_a_pattern_of_reasons(self, letters: Connection) -> None:
        assert replay(letters, i_reason="torn%") == ["a", "b"]

    def test_by_type(self, letters: Connection) -> None:
        assert replay(letters, i_type="u") == ["c"]

    def test_by_time(self, letters: Connection) -> None:
        since = value(letters, "select now() - interval '36 hours'")
        until = value(letters, "select now() - interval '12 hours'")
        assert replay(letters, i_since=since, i_until=until) == ["b"]

    def test_the_oldest_first_up_to_a_limit(self, letters: Connection) -> None:
        assert replay(letters, i_limit=2) == ["a", "b"]

    def test_by_all_at_once(self, letters: Connection) -> None:
        since = value(letters, "select now() - interval '36 hours'")
        assert replay(letters, i_reason="torn%", i_type="t", i_since=since, i_limit=5) == ["b"]

    def test_what_does_not_fit_stays(self, letters: Connection) -> None:
        replay(letters, i_type="t")
        assert inspect(letters) == ["c"]

    def test_up_to_an_id(self, letters: Connection) -> None:
        max_id = value(letters, "select max_id from pgque.dlq_summary('q') where reason = 'torn 2'")
        assert replay(letters, i_max_id=max_id) == ["a", "b"]

    def test_nothing_given_replays_all(self, letters: Connection) -> None:
        assert replay(letters, i_limit=None) == ["a", "b", "c"]

    @pytest.mark.parametrize(
        "filters", ["i_limit => -1", "i_since => now(), i_until => now() - interval '1 s'"]
    )
    def test_a_filter_that_makes_no_sense_is_refused(
        self, letters: Connection, filters: str
    ) -> None:
        with refused("PQ005", "no replay"):
            value(letters, f"select replayed from pgque.dlq_replay_matching('q', {filters})")


def test_of_two_replays_of_one_dead_letter_one_is_refused(
    db: Connection, another: Callable[[], Connection], background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    give_up(db, "a")
    letter = value(db, "select dl_id from pgque.dlq_inspect('q')")
    second = another()
    with db.transaction():
        value(db, "select pgque.dlq_replay(%s)", letter)
        late = background.submit(value, second, "select pgque.dlq_replay(%s)", letter)
        wait_until_blocked(another(), second)
    with refused("PQ010"):
        late.result()
    tick(db)
    assert drain(db) == ["a"]


def test_replaying_all_leaves_those_that_another_session_replays(
    db: Connection, another: Callable[[], Connection]
) -> None:
    make_queue(db)
    give_up(db, "a", "b")
    with db.transaction():
        value(db, "select pgque.dlq_replay(min(dl_id)) from pgque.dlq_inspect('q')")
        answer = rows(another(), "select * from pgque.dlq_replay_all('q')")
    tick(db)
    assert (answer, sorted(drain(db))) == ([(1, 0, None)], ["a", "b"])
