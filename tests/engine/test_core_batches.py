"""PgQ's other ways to open, read and retry a batch, and to insert in bulk."""

import pytest

from tests.support.queues import Connection, refused


@pytest.fixture
def queue(db: Connection) -> Connection:
    db.make_queue()
    return db


class TestInsertingInBulk:
    BULK = "select pgque.insert_event_bulk(%s, 'kind', %s::text[])"

    def test_ids_come_in_order(self, queue: Connection) -> None:
        assert queue.value(self.BULK, "q", "{}") == []
        ids = queue.value(self.BULK, "q", "{a,b,c}")
        queue.tick()
        found = [(row[0], row[4], row[5]) for row in queue.events(queue.next_batch())]
        assert found == list(zip(ids, ["kind"] * 3, "abc", strict=True))


def test_next_batch_info_tells_what_next_batch_custom_tells(queue: Connection) -> None:
    info = "select * from pgque.next_batch_info('q', 'c')"
    assert queue.rows(info) == [(None,) * 7]
    assert queue.open_batch("a", "b") is not None
    custom = "select * from pgque.next_batch_custom('q', 'c', null, null, null)"
    assert queue.rows(info) == queue.rows(custom)


class TestCursor:
    OPEN = "select ev_data from pgque.get_batch_cursor(%s, %s, %s)"
    OPEN_WHERE = "select ev_data from pgque.get_batch_cursor(%s, %s, %s, %s)"

    def test_the_first_events_come_at_once_and_the_rest_by_fetch(self, queue: Connection) -> None:
        batch = queue.open_batch("a", "b", "c", "d")
        with queue.transaction():
            opened = "select * from pgque.get_batch_cursor(%s, %s, 2)"
            first = queue.rows(opened, batch, 'Strange "name"')
            rest = queue.rows('fetch all from "Strange ""name"""')
        assert [row[5] for row in first] == ["a", "b"]
        assert first + rest == queue.events(batch)

    def test_all_or_none_may_come_at_once(self, queue: Connection) -> None:
        batch = queue.open_batch("a", "b")
        assert queue.rows(self.OPEN, batch, "cur", 10) == [("a",), ("b",)]
        with queue.transaction():
            assert queue.rows(self.OPEN, batch, "none", 0) == []
            assert len(queue.rows("fetch all from none")) == 2

    @pytest.mark.parametrize(
        "where", ["ev_data > 'a'", "ev_data <> 'a' -- a comment", "'b' <= ev_data"]
    )
    def test_a_condition_filters(self, queue: Connection, where: str) -> None:
        batch = queue.open_batch("a", "b", "c")
        assert queue.rows(self.OPEN_WHERE, batch, "cur", 10, where) == [("b",), ("c",)]

    def test_a_condition_is_one_statement_with_the_callers_rights(self, queue: Connection) -> None:
        batch = queue.open_batch("a")
        injection = "true); drop table pgque.queue; select (1"
        with refused("42P11"):
            queue.rows(self.OPEN_WHERE, batch, "cur", 1, injection)
        assert queue.value("select count(*) from pgque.queue") == 1
        queue.execute("create table public.secret as select 'x' as word")
        queue.execute("set role pgque_admin")
        with refused("42501", "secret"):
            queue.rows(self.OPEN_WHERE, batch, "cur", 1, "exists (select from public.secret)")

    @pytest.mark.parametrize("name", ["", "taken"])
    def test_a_new_name_is_needed(self, queue: Connection, name: str) -> None:
        batch = queue.open_batch("a")
        with refused("PQ005", "Name a cursor"), queue.transaction():
            queue.execute("declare taken cursor for select 1")
            queue.rows(self.OPEN, batch, name, 1)


class TestRetryingABatch:
    def test_all_its_events_come_again(self, queue: Connection) -> None:
        batch = queue.open_batch("a", "b")
        assert queue.value("select pgque.batch_retry(%s, 0)", batch) == 2
        queue.finish(batch)
        queue.value("select pgque.maint_retry_events()")
        queue.tick()
        again = queue.next_batch()
        assert [(row[3], row[5]) for row in queue.events(again)] == [(1, "a"), (1, "b")]

    def test_what_was_scheduled_before_stays(self, queue: Connection) -> None:
        batch = queue.open_batch("a", "b")
        queue.value("select pgque.event_retry(%s, %s, 3600)", batch, queue.events(batch)[0][0])
        assert queue.value("select pgque.batch_retry(%s, 0)", batch) == 1


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
        done: int = db.value(f"select pgque.event_retry_raw({call})", *arguments.values())
        return done

    def test_the_event_comes_as_given(self, db: Connection) -> None:
        db.make_queue(consumers=("c", "other"))
        assert self.retry(db) == 4711
        db.value("select pgque.maint_retry_events()")
        db.tick()
        ((number, at, _, *rest),) = db.events(db.next_batch())
        assert (number, at.year, rest) == (4711, 2019, [3, "kind", "data", "1", "2", "3", "4"])
        assert db.drain(consumer="other") == []

    def test_without_an_id_it_is_a_new_event(self, queue: Connection) -> None:
        (before,) = queue.send("a")
        assert self.retry(queue, id=None, time=None, retry=None) == before + 1

    def test_one_scheduled_before_stays(self, queue: Connection) -> None:
        self.retry(queue, retry=1)
        self.retry(queue, retry=2)
        assert queue.rows("select ev_retry from pgque.retry_queue") == [(1,)]

    def test_a_negative_count_of_retries_is_refused(self, queue: Connection) -> None:
        with refused("PQ005"):
            self.retry(queue, retry=-1)
