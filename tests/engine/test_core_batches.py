"""PgQ's other ways to open, read and retry a batch, and to insert in bulk."""

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)


class TestInsertingInBulk:
    def test_ids_come_in_order(self, db: Connection) -> None:
        make_queue(db)
        ids = value(db, "select pgque.insert_event_bulk('q', 'kind', '{a,b,c}')")
        tick(db)
        found = [(row[0], row[4], row[5]) for row in events(db, next_batch(db))]
        assert found == list(zip(ids, ["kind"] * 3, "abc", strict=True))

    def test_nothing_makes_nothing(self, db: Connection) -> None:
        make_queue(db)
        assert value(db, "select pgque.insert_event_bulk('q', 'kind', '{}')") == []

    @pytest.mark.parametrize(
        ("queue", "data", "code"),
        [("nosuch", "{a}", "PQ001"), (None, "{a}", "PQ005"), ("q", None, "PQ005")],
    )
    def test_a_queue_and_an_array_are_needed(
        self, db: Connection, queue: str | None, data: str | None, code: str
    ) -> None:
        make_queue(db)
        with refused(code):
            value(db, "select pgque.insert_event_bulk(%s, 'kind', %s::text[])", queue, data)

    def test_a_closed_queue_refuses(self, db: Connection) -> None:
        make_queue(db, disable_insert="true")
        with refused("PQ006"):
            value(db, "select pgque.insert_event_bulk('q', 'kind', '{a}')")


class TestNextBatchInfo:
    def test_it_tells_what_next_batch_custom_tells(self, db: Connection) -> None:
        make_queue(db)
        open_batch(db, "a", "b")
        assert rows(db, "select * from pgque.next_batch_info('q', 'c')") == rows(
            db, "select * from pgque.next_batch_custom('q', 'c', null, null, null)"
        )

    def test_no_batch_is_a_row_of_nulls(self, db: Connection) -> None:
        make_queue(db)
        assert rows(db, "select * from pgque.next_batch_info('q', 'c')") == [(None,) * 7]

    @pytest.mark.parametrize(
        ("queue", "consumer", "code"),
        [("nosuch", "c", "PQ001"), ("q", "x", "PQ002"), (None, "c", "PQ005"), ("q", None, "PQ005")],
    )
    def test_unknown_names_are_refused(
        self, db: Connection, queue: str | None, consumer: str | None, code: str
    ) -> None:
        make_queue(db)
        with refused(code):
            rows(db, "select * from pgque.next_batch_info(%s, %s)", queue, consumer)


class TestCursor:
    OPEN = "select ev_data from pgque.get_batch_cursor(%s, %s, %s)"
    OPEN_WHERE = "select ev_data from pgque.get_batch_cursor(%s, %s, %s, %s)"

    def test_the_first_events_come_at_once_and_the_rest_by_fetch(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b", "c", "d")
        with db.transaction():
            first = rows(db, self.OPEN, batch, 'Strange "name"', 2)
            rest = rows(db, 'fetch all from "Strange ""name"""')
        assert first == [("a",), ("b",)]
        assert [row[5] for row in rest] == ["c", "d"]

    def test_together_they_are_the_batch(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b", "c")
        with db.transaction():
            first = rows(db, "select * from pgque.get_batch_cursor(%s, 'cur', 1)", batch)
            found = first + rows(db, "fetch all from cur")
        assert found == events(db, batch)

    def test_more_than_there_are_are_all(self, db: Connection) -> None:
        make_queue(db)
        assert rows(db, self.OPEN, open_batch(db, "a", "b"), "cur", 10) == [("a",), ("b",)]

    def test_none_at_once_only_opens(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with db.transaction():
            assert rows(db, self.OPEN, batch, "cur", 0) == []
            assert len(rows(db, "fetch all from cur")) == 1

    @pytest.mark.parametrize(
        "where", ["ev_data > 'a'", "ev_data <> 'a' -- a comment", "'b' <= ev_data"]
    )
    def test_a_condition_filters(self, db: Connection, where: str) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b", "c")
        assert rows(db, self.OPEN_WHERE, batch, "cur", 10, where) == [("b",), ("c",)]

    def test_a_condition_acts_with_the_callers_rights(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        db.execute("create table public.secret as select 'x' as word")
        db.execute("set role pgque_admin")
        with refused("42501", "secret"):
            rows(db, self.OPEN_WHERE, batch, "cur", 1, "exists (select from public.secret)")

    def test_a_condition_is_one_statement(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("42P11"):
            rows(db, self.OPEN_WHERE, batch, "cur", 1, "true); drop table pgque.queue; select (1")
        assert value(db, "select count(*) from pgque.queue") == 1

    @pytest.mark.parametrize(
        ("name", "limit"), [(None, 1), ("", 1), ("cur", None), ("cur", -1), ("taken", 1)]
    )
    def test_a_new_name_and_a_number_are_needed(
        self, db: Connection, name: str | None, limit: int | None
    ) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("PQ005", "Name a cursor"), db.transaction():
            db.execute("declare taken cursor for select 1")
            rows(db, self.OPEN, batch, name, limit)

    @pytest.mark.parametrize("batch", [0, -1, None, 4711])
    def test_an_open_batch_is_needed(self, db: Connection, batch: int | None) -> None:
        with refused("PQ003"):
            rows(db, self.OPEN, batch, "cur", 1)


class TestRetryingABatch:
    def test_all_its_events_come_again(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b")
        assert value(db, "select pgque.batch_retry(%s, 0)", batch) == 2
        finish(db, batch)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        again = next_batch(db)
        assert [(row[3], row[5]) for row in events(db, again)] == [(1, "a"), (1, "b")]

    def test_what_was_scheduled_before_stays(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a", "b")
        value(db, "select pgque.event_retry(%s, %s, 3600)", batch, events(db, batch)[0][0])
        assert value(db, "select pgque.batch_retry(%s, 0)", batch) == 1

    @pytest.mark.parametrize("seconds", [-1, None])
    def test_no_retry_in_the_past(self, db: Connection, seconds: int | None) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("PQ005", "0 or more"):
            value(db, "select pgque.batch_retry(%s, %s)", batch, seconds)

    @pytest.mark.parametrize("batch", [0, None, 4711])
    def test_an_open_batch_is_needed(self, db: Connection, batch: int | None) -> None:
        with refused("PQ003"):
            value(db, "select pgque.batch_retry(%s, 1)", batch)

    def test_a_dropped_queues_batch_is_gone(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        value(db, "select pgque.drop_queue('q', true)")
        with refused("PQ003", str(batch)):
            value(db, "select pgque.batch_retry(%s, 1)", batch)


class TestRetryingRaw:
    def retry(self, db: Connection, **changes: object) -> int:
        arguments = {
            "queue": "q",
            "consumer": "c",
            "after": "2020-01-01",
            "id": 4711,
            "time": "2019-01-01",
            "retry": 3,
        } | changes
        done: int = value(
            db,
            "select pgque.event_retry_raw(%s, %s, %s, %s::bigint, %s, %s::int, 'kind', 'data',"
            " '1', '2', '3', '4')",
            *arguments.values(),
        )
        return done

    def test_the_event_comes_as_given(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "other"))
        assert self.retry(db) == 4711
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        ((number, at, _, *rest),) = events(db, next_batch(db))
        assert (number, at.year, rest) == (4711, 2019, [3, "kind", "data", "1", "2", "3", "4"])
        assert drain(db, consumer="other") == []

    def test_without_an_id_it_is_a_new_event(self, db: Connection) -> None:
        make_queue(db)
        (before,) = send(db, "a")
        assert self.retry(db, id=None, time=None, retry=None) == before + 1

    def test_one_scheduled_before_stays(self, db: Connection) -> None:
        make_queue(db)
        self.retry(db, retry=1)
        self.retry(db, retry=2)
        assert rows(db, "select ev_retry from pgque.retry_queue") == [(1,)]

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"queue": None}, "PQ005"),
            ({"queue": "nosuch"}, "PQ001"),
            ({"consumer": None}, "PQ005"),
            ({"consumer": "nobody"}, "PQ002"),
            ({"after": None}, "PQ005"),
            ({"retry": -1}, "PQ005"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, db: Connection, changes: dict[str, object], code: str
    ) -> None:
        make_queue(db)
        with refused(code):
            self.retry(db, **changes)
