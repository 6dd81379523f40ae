"""Dead letters: seen, counted, replayed to the one consumer that gave them up, purged."""

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
