"""Dead letters: seen, counted, replayed to the one consumer that gave them up, purged."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

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
    wait_until_blocked,
)


def give_up(
    db: Connection, *texts: str, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    """Sends events and makes dead letters of them."""
    send(db, *texts, queue=queue)
    tick(db, queue)
    give_up_next(db, consumer=consumer, reason=reason, queue=queue)


def give_up_next(
    db: Connection, *, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    batch = next_batch(db, queue, consumer)
    ids = [row[0] for row in events(db, batch)]
    value(db, "select pgque.dead_letter_batch(%s, %s, %s)", batch, ids, reason)
    finish(db, batch)


def inspect(db: Connection, queue: str = "q") -> list[str]:
    return [text for (text,) in rows(db, "select ev_data from pgque.dlq_inspect(%s)", queue)]


def test_a_dead_letter_holds_event_reason_and_consumer(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')")
    tick(db)
    give_up_next(db, reason="no reason")
    assert rows(
        db,
        "select dl_reason, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
        " from pgque.dlq_inspect('q')",
    ) == [("no reason", "t", "x", "1", "2", "3", "4")]


def test_dead_letters_come_newest_first(db: Connection) -> None:
    make_queue(db)
    for text in "abc":
        give_up(db, text)
    assert inspect(db) == ["c", "b", "a"]


def test_inspecting_stops_at_the_limit(db: Connection) -> None:
    make_queue(db)
    give_up(db, "a", "b", "c")
    assert len(rows(db, "select * from pgque.dlq_inspect('q', 2)")) == 2


def test_dead_letters_of_other_queues_stay_out(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "other")
    give_up(db, "a", queue="other")
    assert inspect(db) == []


def test_the_summary_counts_by_consumer_and_reason(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    give_up(db, "a", "b", reason="torn")
    give_up_next(db, consumer="other", reason="late")
    give_up(db, "d", reason=None)
    assert rows(db, "select consumer_name, reason, dead_letters from pgque.dlq_summary('q')") == [
        ("c", "torn", 2),
        ("other", "late", 2),
        ("c", None, 1),
    ]


def test_giving_an_event_up_again_changes_nothing(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    batch = next_batch(db)
    ids = [row[0] for row in events(db, batch)]
    for reason in ("first", "second"):
        value(db, "select pgque.dead_letter_batch(%s, %s, %s)", batch, ids, reason)
    assert rows(db, "select dl_reason from pgque.dlq_inspect('q')") == [("first",)]


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


def test_a_purge_deletes_what_is_old_enough(db: Connection) -> None:
    make_queue(db)
    give_up(db, "old", "new")
    db.execute(
        "update pgque.dead_letter set dl_time = now() - interval '2 days' where ev_data = 'old'"
    )
    purged = value(db, "select pgque.dlq_purge('q', '1 day')")
    assert (purged, inspect(db)) == (1, ["new"])


def test_a_purge_by_default_keeps_thirty_days(db: Connection) -> None:
    make_queue(db)
    give_up(db, "old", "new")
    db.execute(
        "update pgque.dead_letter set dl_time = now() - interval '31 days' where ev_data = 'old'"
    )
    assert (value(db, "select pgque.dlq_purge('q')"), inspect(db)) == (1, ["new"])


def test_a_purge_of_all_leaves_other_queues_alone(db: Connection) -> None:
    make_queue(db)
    make_queue(db, "other")
    give_up(db, "a")
    give_up(db, "x", queue="other")
    value(db, "select pgque.dlq_purge('q', '0')")
    assert (inspect(db), inspect(db, "other")) == ([], ["x"])


@pytest.mark.parametrize("age", ["-1 day", None])
def test_a_purge_of_no_age_is_refused(db: Connection, age: str | None) -> None:
    make_queue(db)
    with refused("PQ005"):
        value(db, "select pgque.dlq_purge('q', %s::interval)", age)


@pytest.mark.parametrize(
    "call",
    [
        "pgque.dlq_inspect('nosuch')",
        "pgque.dlq_summary('nosuch')",
        "pgque.dlq_replay_all('nosuch')",
        "pgque.dlq_purge('nosuch')",
    ],
)
def test_an_unknown_queue_is_named(db: Connection, call: str) -> None:
    with refused("PQ001", '"nosuch"'):
        db.execute(f"select * from {call}".encode())


EVENT_DEAD = "select pgque.event_dead(%s, %s, %s, %s, %s::text::xid8, %s, %s, %s, %s, %s, %s, %s)"


def test_an_event_given_up_by_its_fields_is_a_dead_letter_like_any_other(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')")
    tick(db)
    batch = next_batch(db)
    (event,) = events(db, batch)
    assert value(db, EVENT_DEAD, batch, event[0], "raw", *event[1:]) == 1
    by_fields = rows(
        db,
        "select ev_id, ev_time, ev_txid::text, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2,"
        " ev_extra3, ev_extra4, dl_reason from pgque.dlq_inspect('q')",
    )
    assert by_fields == [(*event[:2], str(event[2]), *event[3:], "raw")]
    assert value(db, EVENT_DEAD, batch, event[0], "again", *event[1:]) == 0


def test_an_event_of_a_subconsumer_given_up_by_its_fields_belongs_to_the_main_one(
    db: Connection,
) -> None:
    make_queue(db, consumers=())
    value(db, "select pgque.register_subconsumer('q', 'c', 'w')")
    send(db, "x")
    tick(db)
    batch = value(db, "select pgque.next_batch('q', 'c', 'w')")
    (event,) = events(db, batch)
    value(db, EVENT_DEAD, batch, event[0], "raw", *event[1:])
    assert rows(db, "select consumer_name from pgque.dlq_summary('q')") == [("c",)]


def test_giving_up_by_fields_wants_an_open_batch_and_an_event(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    batch = next_batch(db)
    (event,) = events(db, batch)
    with refused("PQ003", "4711"):
        value(db, EVENT_DEAD, 4711, event[0], "raw", *event[1:])
    with refused("PQ005", "id"):
        value(db, EVENT_DEAD, batch, None, "raw", *event[1:])
    with refused("PQ005", "time"):
        value(db, EVENT_DEAD, batch, event[0], "raw", None, *event[2:])


def test_an_event_of_a_leased_batch_is_not_given_up_by_its_fields(db: Connection) -> None:
    make_queue(db)
    send(db, "x")
    tick(db)
    batch = value(db, "select batch_id from pgque.claim_batch('q', 'c', 'me')")
    (event,) = events(db, batch)
    with refused("PQ004", '"me"'):
        value(db, EVENT_DEAD, batch, event[0], "raw", *event[1:])


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


class TestWithoutTheConsumer:
    """Dead letters of a consumer whose registration ended."""

    def test_they_go_with_it(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c')")
        assert inspect(db) == []

    def test_they_stay_if_asked_for_and_are_counted(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c', true)")
        counts = rows(db, "select consumer_name, dead_letters from pgque.dlq_summary('q')")
        assert (inspect(db), counts) == (["a"], [("c", 1)])

    def test_a_replay_says_who_is_missing_and_keeps_it(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c', true)")
        with refused("PQ002", '"c"', '"q"', "pgque.register_consumer('q', 'c')"):
            value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
        assert inspect(db) == ["a"]

    def test_registered_again_it_gets_them_replayed(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c', true)")
        value(db, "select pgque.register_consumer('q', 'c')")
        value(db, "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')")
        tick(db)
        assert drain(db) == ["a"]

    def test_they_can_be_purged(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c', true)")
        assert value(db, "select pgque.dlq_purge('q', '0')") == 1

    def test_their_queue_is_dropped_only_by_force(self, db: Connection) -> None:
        make_queue(db)
        give_up(db, "a")
        value(db, "select pgque.unregister_consumer('q', 'c', true)")
        with refused("PQ007", "dead letters"):
            value(db, "select pgque.drop_queue('q')")
        assert inspect(db) == ["a"]
        letter = value(db, "select dl_id from pgque.dlq_inspect('q')")
        value(db, "select pgque.drop_queue('q', true)")
        with refused("PQ010", "queue"):
            value(db, "select pgque.dlq_replay(%s)", letter)
