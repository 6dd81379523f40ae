"""Dead letters: made one by one or many at once, seen, exported, purged, and left behind."""

from collections.abc import Sequence

import pytest

from tests.support.queues.dead_letters import give_up, give_up_next, inspect
from tests.support.queues.sql import Connection, refused

REPLAY = "select pgque.dlq_replay(dl_id) from pgque.dlq_inspect('q')"
FULL_EVENT = "select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')"


class TestSeen:
    def test_are_event_reason_and_consumer(self, q: Connection) -> None:
        q.value(FULL_EVENT)
        ((ev_id, ev_time, *_),) = q.events(q.open_batch())
        give_up_next(q, reason="bad")
        columns = "dl_reason, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
        found = q.rows(f"select {columns} from pgque.dlq_inspect('q')")
        assert found == [("bad", "t", "x", "1", "2", "3", "4")]
        ((dl_id, dl_time),) = q.rows("select dl_id, dl_time from pgque.dlq_inspect('q')")
        assert q.rows("select * from pgque.dlq_export('q')") == [
            (dl_id, "c", dl_time, "bad", ev_id, ev_time, None, "t", "x", "1", "2", "3", "4")
        ]

    def test_is_the_newest_first_up_to_a_limit(self, q: Connection) -> None:
        q.make_queue("other")
        give_up(q, "of another queue", queue="other")
        for text in "abc":
            give_up(q, text)
        assert inspect(q) == ["c", "b", "a"]
        for limit, count in ((0, 0), (2, 2), (None, 3)):
            assert len(q.rows("select * from pgque.dlq_inspect('q', %s)", limit)) == count
        q.execute("update pgque.dead_letter set dl_time = now()")
        assert inspect(q) == ["c", "b", "a"]  # of one time, by id

    def test_are_counts_by_consumer_and_reason(self, db: Connection) -> None:
        db.make_queue(consumers=("c", "other"))
        give_up(db, "a", "b", reason="torn")
        give_up_next(db, consumer="other", reason="late")
        give_up(db, "d", reason=None)
        columns = "consumer_name, reason, dead_letters"
        assert db.rows(f"select {columns} from pgque.dlq_summary('q')") == [
            ("c", "torn", 2),
            ("other", "late", 2),
            ("c", None, 1),
        ]

    def test_in_an_export_are_pages_the_oldest_first(self, q: Connection) -> None:
        q.make_queue("other")
        give_up(q, "of another queue", queue="other")
        give_up(q, *"abcde")
        pages, after = [], 0
        while page := q.rows("select dl_id, ev_data from pgque.dlq_export('q', %s, 2)", after):
            pages.append([text for _, text in page])
            after = page[-1][0]
        assert pages == [["a", "b"], ["c", "d"], ["e"]]
        assert len(q.rows("select pgque.dlq_export('q', 0, 1)")) == 1
        with refused("PQ005", "a page cannot have"):
            q.rows("select pgque.dlq_export('q', 0, 0)")


def test_what_is_old_enough_is_purged_and_nothing_of_other_queues(q: Connection) -> None:
    q.make_queue("other")
    give_up(q, "x", queue="other")
    give_up(q, "oldest", "old", "new")
    for text, age in (("oldest", "31 days"), ("old", "2 days"), ("x", "99 days")):
        sql = "update pgque.dead_letter set dl_time = now() - %s::interval where ev_data = %s"
        q.execute(sql, [age, text])
    assert (q.value("select pgque.dlq_purge('q')"), inspect(q)) == (1, ["new", "old"])
    assert (q.value("select pgque.dlq_purge('q', '1 day')"), inspect(q)) == (1, ["new"])
    assert inspect(q, "other") == ["x"]


class TestByTheFieldsOfAnEvent:
    CALL = "select pgque.event_dead(%s, %s, %s, %s, %s::text::xid8, %s, %s, %s, %s, %s, %s, %s)"

    @pytest.fixture
    def batch(self, db: Connection) -> int:
        db.make_queue()
        db.value(FULL_EVENT)
        return db.open_batch()

    def test_one_is_like_any_other(self, db: Connection, batch: int) -> None:
        (event,) = db.events(batch)
        assert db.value(self.CALL, batch, event[0], "raw", *event[1:]) == 1
        columns = (
            "ev_id, ev_time, ev_txid::text, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2,"
            " ev_extra3, ev_extra4, dl_reason"
        )
        found = db.rows(f"select {columns} from pgque.dlq_inspect('q')")
        assert found == [(*event[:2], str(event[2]), *event[3:], "raw")]

    def test_one_of_a_subconsumer_belongs_to_the_main_one(self, bare: Connection) -> None:
        bare.value("select pgque.register_subconsumer('q', 'c', 'w')")
        bare.publish("x")
        batch = bare.value("select pgque.next_batch('q', 'c', 'w')")
        (event,) = bare.events(batch)
        bare.value(self.CALL, batch, event[0], "raw", *event[1:])
        assert bare.rows("select consumer_name from pgque.dlq_summary('q')") == [("c",)]

    def test_one_is_of_an_open_batch_that_nobody_else_holds(
        self, db: Connection, batch: int
    ) -> None:
        (event,) = db.events(batch)
        with refused("PQ003", "4711"):
            db.value(self.CALL, 4711, event[0], "raw", *event[1:])
        with refused("PQ005", "id"):
            db.value(self.CALL, batch, None, "raw", *event[1:])
        with refused("PQ005", "time"):
            db.value(self.CALL, batch, event[0], "raw", None, *event[2:])
        db.value("select batch_id from pgque.claim_batch('q', 'c', 'me')")
        with refused("PQ004", '"me"'):
            db.value(self.CALL, batch, event[0], "raw", *event[1:])


class TestManyAtOnce:
    """Failed events in one call, each with its reason."""

    NACK = "select pgque.nack_batch(%s, %s::bigint[], '0', %s::text[])"
    GIVE_UP = "select pgque.dead_letter_batch(%s, %s::bigint[], %s::text[])"

    def open_events(self, db: Connection, *texts: str, **config: str) -> tuple[int, list[int]]:
        """A batch, and the ids of its events."""
        db.make_queue(**config)
        batch = db.open_batch(*texts)
        return batch, [event[0] for event in db.events(batch)]

    def reasons(self, db: Connection) -> dict[str, str | None]:
        return dict(db.rows("select ev_data, dl_reason from pgque.dead_letter"))

    def waiting(self, db: Connection) -> list[str]:
        found = db.rows("select ev_data from pgque.retry_queue order by ev_id")
        return [text for (text,) in found]

    def test_each_keeps_its_reason(self, db: Connection) -> None:
        batch, ids = self.open_events(db, "a", "b", "c")
        assert db.value(self.GIVE_UP, batch, ids[::-1], ["of c", None, "of a"]) == 3
        assert self.reasons(db) == {"a": "of a", "b": None, "c": "of c"}
        db.value(self.GIVE_UP, batch, ids, ["another"])
        assert self.reasons(db) == {"a": "of a", "b": None, "c": "of c"}

    def test_a_single_reason_stands_for_all(self, db: Connection) -> None:
        batch, ids = self.open_events(db, "a", "b")
        db.value(self.GIVE_UP, batch, ids, ["bad"])
        assert self.reasons(db) == {"a": "bad", "b": "bad"}

    def test_retries_used_up_keep_each_its_reason(self, db: Connection) -> None:
        batch, ids = self.open_events(db, "a", "b", max_retries="0")
        db.value(self.NACK, batch, ids, ["of a", None])
        assert self.reasons(db) == {"a": "of a", "b": "max retries exceeded"}

    def test_an_id_given_twice_counts_once_and_none_is_no_error(self, db: Connection) -> None:
        batch, ids = self.open_events(db, "a", "b")
        assert (db.value(self.NACK, batch, [], []), db.value(self.GIVE_UP, batch, [], ["x"])) == (
            0,
            0,
        )
        assert db.value(self.NACK, batch, [*ids, *ids], ["x"]) == 2

    @pytest.mark.parametrize("call", [NACK, GIVE_UP])
    def test_other_numbers_of_reasons_and_a_null_id_are_refused(
        self, db: Connection, call: str
    ) -> None:
        batch, ids = self.open_events(db, "a", "b")
        given: Sequence[str] | None
        for given in (["x", "y", "z"], [], None):
            with refused("PQ005", "reasons for 2 events"):
                db.value(call, batch, ids, given)
        with refused("PQ009", "null"):
            db.value(call, batch, [*ids, None], ["x"])
        assert (self.reasons(db), self.waiting(db)) == ({}, [])


class TestWithoutTheConsumer:
    """Dead letters of a consumer whose registration ended."""

    @pytest.fixture
    def left(self, db: Connection) -> Connection:
        db.make_queue()
        give_up(db, "a")
        db.value("select pgque.unregister_consumer('q', 'c', true)")
        return db

    def test_they_are_counted_and_can_be_purged(self, left: Connection) -> None:
        counts = left.rows("select consumer_name, dead_letters from pgque.dlq_summary('q')")
        assert (inspect(left), counts) == (["a"], [("c", 1)])
        assert left.value("select pgque.dlq_purge('q', '0')") == 1

    def test_a_replay_says_who_is_missing_and_works_when_it_is_back(self, left: Connection) -> None:
        with refused("PQ002", '"c"', '"q"', "pgque.register_consumer('q', 'c')"):
            left.value(REPLAY)
        assert inspect(left) == ["a"]
        left.value("select pgque.register_consumer('q', 'c')")
        left.value(REPLAY)
        assert left.received() == ["a"]

    def test_they_go_with_a_consumer_that_unsubscribes(self, q: Connection) -> None:
        give_up(q, "a")
        q.value("select pgque.unsubscribe('q', 'c')")
        assert inspect(q) == []

    def test_their_queue_is_dropped_only_by_force(self, left: Connection) -> None:
        with refused("PQ007", "dead letters"):
            left.value("select pgque.drop_queue('q')")
        assert inspect(left) == ["a"]
        letter = left.value("select dl_id from pgque.dlq_inspect('q')")
        left.value("select pgque.drop_queue('q', true)")
        with refused("PQ010", "queue"):
            left.value("select pgque.dlq_replay(%s)", letter)


def test_a_summary_of_an_unknown_queue_is_refused_whatever_the_plan(bare: Connection) -> None:
    for plan in ("enable_nestloop", "enable_hashjoin", "enable_mergejoin"):
        bare.execute(f"set {plan} = off".encode())
        with refused("PQ001", "nope"):
            bare.rows("select * from pgque.dlq_summary('nope')")
        bare.execute(f"reset {plan}".encode())
