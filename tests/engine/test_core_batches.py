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


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db)
    return db


class TestInsertingInBulk:
    BULK = "select pgque.insert_event_bulk(%s, 'kind', %s::text[])"

    def test_ids_come_in_order(self, queue: Connection) -> None:
        assert value(queue, self.BULK, "q", "{}") == []
        ids = value(queue, self.BULK, "q", "{a,b,c}")
        tick(queue)
        found = [(row[0], row[4], row[5]) for row in events(queue, next_batch(queue))]
        assert found == list(zip(ids, ["kind"] * 3, "abc", strict=True))


def test_next_batch_info_tells_what_next_batch_custom_tells(queue: Connection) -> None:
    info = "select * from pgque.next_batch_info('q', 'c')"
    assert rows(queue, info) == [(None,) * 7]
    assert open_batch(queue, "a", "b") is not None
    custom = "select * from pgque.next_batch_custom('q', 'c', null, null, null)"
    assert rows(queue, info) == rows(queue, custom)


class TestCursor:
    OPEN = "select ev_data from pgque.get_batch_cursor(%s, %s, %s)"
    OPEN_WHERE = "select ev_data from pgque.get_batch_cursor(%s, %s, %s, %s)"

    def test_the_first_events_come_at_once_and_the_rest_by_fetch(self, queue: Connection) -> None:
        batch = open_batch(queue, "a", "b", "c", "d")
        with queue.transaction():
            opened = "select * from pgque.get_batch_cursor(%s, %s, 2)"
            first = rows(queue, opened, batch, 'Strange "name"')
            rest = rows(queue, 'fetch all from "Strange ""name"""')
        assert [row[5] for row in first] == ["a", "b"]
        assert first + rest == events(queue, batch)

    def test_all_or_none_may_come_at_once(self, queue: Connection) -> None:
        batch = open_batch(queue, "a", "b")
        assert rows(queue, self.OPEN, batch, "cur", 10) == [("a",), ("b",)]
        with queue.transaction():
            assert rows(queue, self.OPEN, batch, "none", 0) == []
            assert len(rows(queue, "fetch all from none")) == 2

    @pytest.mark.parametrize(
        "where", ["ev_data > 'a'", "ev_data <> 'a' -- a comment", "'b' <= ev_data"]
    )
    def test_a_condition_filters(self, queue: Connection, where: str) -> None:
        batch = open_batch(queue, "a", "b", "c")
        assert rows(queue, self.OPEN_WHERE, batch, "cur", 10, where) == [("b",), ("c",)]

    def test_a_condition_is_one_statement_with_the_callers_rights(self, queue: Connection) -> None:
        batch = open_batch(queue, "a")
        injection = "true); drop table pgque.queue; select (1"
        with refused("42P11"):
            rows(queue, self.OPEN_WHERE, batch, "cur", 1, injection)
        assert value(queue, "select count(*) from pgque.queue") == 1
        queue.execute("create table public.secret as select 'x' as word")
        queue.execute("set role pgque_admin")
        with refused("42501", "secret"):
            rows(queue, self.OPEN_WHERE, batch, "cur", 1, "exists (select from public.secret)")

    @pytest.mark.parametrize("name", ["", "taken"])
    def test_a_new_name_is_needed(self, queue: Connection, name: str) -> None:
        batch = open_batch(queue, "a")
        with refused("PQ005", "Name a cursor"), queue.transaction():
            queue.execute("declare taken cursor for select 1")
            rows(queue, self.OPEN, batch, name, 1)


class TestRetryingABatch:
    def test_all_its_events_come_again(self, queue: Connection) -> None:
        batch = open_batch(queue, "a", "b")
        assert value(queue, "select pgque.batch_retry(%s, 0)", batch) == 2
        finish(queue, batch)
        value(queue, "select pgque.maint_retry_events()")
        tick(queue)
        again = next_batch(queue)
        assert [(row[3], row[5]) for row in events(queue, again)] == [(1, "a"), (1, "b")]

    def test_what_was_scheduled_before_stays(self, queue: Connection) -> None:
        batch = open_batch(queue, "a", "b")
        value(queue, "select pgque.event_retry(%s, %s, 3600)", batch, events(queue, batch)[0][0])
        assert value(queue, "select pgque.batch_retry(%s, 0)", batch) == 1

    def test_a_dead_letter_stays_one(self, queue: Connection) -> None:
        batch = open_batch(queue, "a", "b")
        ids = [events(queue, batch)[0][0]]
        value(queue, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids)
        assert value(queue, "select pgque.batch_retry(%s, 0)", batch) == 1

    def test_tables_that_the_consumer_replicates_are_copied_again(self, queue: Connection) -> None:
        batch = open_batch(queue, "a")
        copied = "select table_name from pgque.replicated_tables('q', 'c')"
        value(
            queue,
            "select pgque.set_replicated('q', 'c', 'public.t', pg_current_snapshot(), 'shape')",
        )
        assert rows(queue, copied) == [("public.t",)]
        value(queue, "select pgque.batch_retry(%s, 0)", batch)
        assert rows(queue, copied) == []


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
        call = "%s, %s, %s, %s::bigint, %s, %s::int, 'kind', 'data', '1', '2', '3', '4'"
        done: int = value(db, f"select pgque.event_retry_raw({call})", *arguments.values())
        return done

    def test_the_event_comes_as_given(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "other"))
        assert self.retry(db) == 4711
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        ((number, at, _, *rest),) = events(db, next_batch(db))
        assert (number, at.year, rest) == (4711, 2019, [3, "kind", "data", "1", "2", "3", "4"])
        assert drain(db, consumer="other") == []

    def test_without_an_id_it_is_a_new_event(self, queue: Connection) -> None:
        (before,) = send(queue, "a")
        assert self.retry(queue, id=None, time=None, retry=None) == before + 1

    def test_one_scheduled_before_stays(self, queue: Connection) -> None:
        self.retry(queue, retry=1)
        self.retry(queue, retry=2)
        assert rows(queue, "select ev_retry from pgque.retry_queue") == [(1,)]

    def test_a_negative_count_of_retries_is_refused(self, queue: Connection) -> None:
        with refused("PQ005"):
            self.retry(queue, retry=-1)
