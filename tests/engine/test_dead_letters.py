"""Dead letters: made, seen, counted, purged, and left behind by their consumer."""

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
    send,
    tick,
    value,
)


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


def test_dead_letters_of_one_time_come_by_their_ids(db: Connection) -> None:
    make_queue(db)
    give_up(db, *"abcdef")
    db.execute("update pgque.dead_letter set dl_time = now()")
    ids = rows(db, "select dl_id from pgque.dlq_inspect('q')")
    assert ids == sorted(ids, reverse=True)


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


def test_an_unknown_queue_is_named(db: Connection) -> None:
    with refused("PQ001", '"nosuch"'):
        db.execute("select * from pgque.dlq_summary('nosuch')")


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
