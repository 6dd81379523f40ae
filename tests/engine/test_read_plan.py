"""Batches small and large, read plans and ranges of ticks: each holds exactly its events.

A plan's slices are run by any reader by itself. Ranges need no consumer.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.support.queues import (
    Another,
    Connection,
    drain,
    event_ids,
    events,
    finish,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    queue_id,
    received,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

PLAN = "select slice_sql from pgque.batch_read_plan(%s, %s) order by slice_nr"
RANGE = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, %s, %s) order by slice_nr"
Skip = Callable[[], None]


@pytest.fixture(params=[0, 1_000], ids=["small batch", "large batch"])
def skip(request: pytest.FixtureRequest, db: Connection) -> Skip:
    """Uses up event ids, so that the batch counts as so many more events."""
    return lambda: value(
        db,
        "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, %s)",
        request.param,
    )


def plan(db: Connection, batch: int, max_slices: int) -> list[str]:
    return [sql for (sql,) in rows(db, PLAN, batch, max_slices)]


def read(db: Connection, slices: list[str]) -> list[tuple[Any, ...]]:
    return sorted(row for sql in slices for row in rows(db, sql))


def read_range(
    db: Connection, first: int | None, last: int | None, consumer: str | None = None
) -> list[tuple[Any, ...]]:
    return read(db, [sql for (sql,) in rows(db, RANGE, first, last, 2, consumer)])


def texts(found: list[tuple[Any, ...]]) -> list[str]:
    return [row[5] for row in found]


def check_every_way(db: Connection, batch: int) -> list[str]:
    """The payloads, the same by each way of reading."""
    found = events(db, batch)
    assert rows(db, value(db, "select pgque.batch_event_sql(%s)", batch)) == found
    assert read(db, plan(db, batch, 3)) == found
    return texts(found)


def send_many(db: Connection, count: int, size: int = 100) -> None:
    value(
        db,
        "select cardinality(pgque.send_batch('q', 't', array("
        "select rpad(n::text || ' ', %s, 'x') from generate_series(1, %s) n)))",
        size,
        count,
    )


def truncate_all(db: Connection) -> None:
    """Finishes all, and rotates it away."""
    drain(db)
    for _ in range(3):
        rotate(db)


class TestSmallAndLargeBatches:
    """They are read in different ways."""

    def test_those_in_progress_are_told_apart(
        self, q: Connection, another: Another, skip: Skip
    ) -> None:
        early, through, late, undone = (another() for _ in range(4))
        for session, text in ((early, "early"), (through, "through"), (undone, "undone")):
            session.execute("begin")
            send(session, text)
        first = tick(q)
        finish(q, next_batch(q))
        late.execute("begin")
        send(late, "late")
        early.execute("commit")
        undone.execute("rollback")
        with q.transaction():
            send(q, "plain")
            with q.transaction(force_rollback=True):
                send(q, "undone too")
            send(q, "plain too")
        skip()
        last = tick(q)
        batch = next_batch(q)
        for session in (through, late):
            session.execute("commit")
        assert check_every_way(q, batch) == ["early", "plain", "plain too"]
        assert read_range(q, first, last) == events(q, batch)
        finish(q, batch)
        assert sorted(received(q)) == ["late", "through"]

    def test_all_tables_are_read(self, q: Connection, another: Another, skip: Skip) -> None:
        producers = [another() for _ in range(3)]
        for number, producer in enumerate(producers):
            producer.execute("begin isolation level repeatable read")
            send(producer, str(number))
            if number < 2:
                tick(q)
                finish(q, next_batch(q))
                rotate(q)
        for producer in producers:
            producer.execute("commit")
        skip()
        tick(q)
        batch = next_batch(q)
        assert check_every_way(q, batch) == ["0", "1", "2"]
        before = events(q, batch)
        rotate(q)
        send(q, "b")
        assert events(q, batch) == before

    def test_another_consumers_retries_are_left_out(self, db: Connection, skip: Skip) -> None:
        make_queue(db, consumers=("c", "other"))
        batch = open_batch(db, "a", "b")
        value(db, "select pgque.nack_batch(%s, %s, '0')", batch, event_ids(db, batch)[:1])
        finish(db, batch)
        value(db, "select pgque.maint_retry_events()")
        skip()
        last = tick(db)
        finish(db, next_batch(db, consumer="other"))
        mine, others = next_batch(db), next_batch(db, consumer="other")
        assert (check_every_way(db, mine), check_every_way(db, others)) == (["a"], [])
        assert texts(read_range(db, last - 1, last, "c")) == ["a"]
        assert read_range(db, last - 1, last, "other") == read_range(db, last - 1, last) == []

    def test_a_small_batch_alone_is_read_by_the_queues_function(self, db: Connection) -> None:
        make_queue(db, consumers=("c", "late"))
        small = open_batch(db, "a")
        value(
            db, "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, 1000)"
        )
        finish(db, next_batch(db, consumer="late"))
        send(db, "b")
        tick(db)
        large = next_batch(db, consumer="late")
        name = f"event_{queue_id(db)}_read"
        sql = "select oid::regprocedure::text from pg_proc where proname = %s"
        ((function,),) = rows(db, sql, name)
        for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
            right = "select has_function_privilege(%s, %s, 'execute')"
            assert not value(db, right, role, function)
        db.execute(f"drop function {function}".encode())
        assert payloads(db, large) == ["b"]
        with refused("42883", name):
            events(db, small)
        value(db, "select pgque.upgrade_schema()")
        assert payloads(db, small) == ["a"]


class TestPlans:
    @pytest.fixture
    def batch(self, q: Connection, another: Another) -> int:
        """A batch in all three tables, with foreign events between its own, and gaps."""
        value(q, "select pgque.set_snapshot_patience('0')::text")  # the late one's, too
        late = another()
        late.execute("begin")
        send(late, "late 1")
        send_many(q, 300)
        tick(q)
        finish(q, next_batch(q))
        for number in range(3):
            send_many(q, 400)
            with q.transaction(force_rollback=True):
                send_many(q, 100)
            if number < 2:
                assert rotate(q) == 1
        send(late, "late 2")
        late.execute("commit")
        open_still = another()
        open_still.execute("begin")
        send(open_still, "not in this batch")
        tick(q)
        send(q, "after the tick")
        found: int = next_batch(q)
        assert len(events(q, found)) == 1202
        return found

    def test_the_slices_together_are_the_batch(self, q: Connection, batch: int) -> None:
        expected = events(q, batch)
        tables = value(q, "select count(*) from pgque.batch_event_tables(%s)", batch)
        for max_slices in (1, 2, 3, 7, 50):
            slices = plan(q, batch, max_slices)
            assert read(q, slices) == expected
            assert 1 <= len(slices) <= max(max_slices, tables)

    def test_the_plan_tells_the_number_and_times_of_events(self, q: Connection, batch: int) -> None:
        sql = "select distinct batch_events, oldest_event, newest_event"
        found = rows(q, f"{sql} from pgque.batch_read_plan(%s, 7)", batch)
        times = [event[1] for event in events(q, batch)]
        assert found == [(1202, min(times), max(times))]
        assert min(times) < max(times)

    def test_a_reader_runs_slices_alone(self, q: Connection, another: Another, batch: int) -> None:
        expected = events(q, batch)
        reader = another()
        reader.execute("set role pgque_reader")
        reader.execute("set search_path = ''")
        slices = plan(reader, batch, 3)
        send_many(q, 500)
        tick(q)
        rotate(q)
        assert read(reader, slices) == expected

    def test_a_large_batch_is_split_as_asked_into_shares_of_blocks(self, q: Connection) -> None:
        send_many(q, 20_000)
        tick(q)
        slices = plan(q, next_batch(q), 4)
        shares = [len(rows(q, sql)) for sql in slices]
        assert len(shares) == 4
        assert max(shares) < 2 * min(shares)
        for sql in slices:
            lines = [line for (line,) in rows(q, "explain " + sql)]
            assert "Tid Range Scan on event_" in "\n".join(lines)

    def test_an_empty_batch_has_no_slice_and_no_plan_is_without(self, q: Connection) -> None:
        tick(q)
        batch = next_batch(q)
        assert plan(q, batch, 4) == []
        for max_slices in (0, -1, None):
            with refused("PQ005", "slices"):
                rows(q, PLAN, batch, max_slices)

    def test_the_plan_tells_the_bytes_of_payloads_and_of_all_texts(self, q: Connection) -> None:
        value(q, "select pgque.insert_event('q', 'type', 'äb', 'one', null, '', 'four')")
        value(q, "select pgque.insert_event('q', 'type', null)")
        value(q, "select pgque.send('q', 'type', repeat('x', 100000))")
        tick(q)
        sizes = "select distinct payload_bytes, batch_bytes from pgque.batch_read_plan(%s, 3)"
        assert rows(q, sizes, next_batch(q)) == [(100_003, 100_022)]

    @pytest.mark.parametrize(
        "work", ["truncate {}", "vacuum full {}", "cluster {} using {}_txid_idx"]
    )
    def test_a_slice_of_a_rewritten_table_fails_loudly(self, q: Connection, work: str) -> None:
        send_many(q, 100)
        tick(q)
        slices = plan(q, next_batch(q), 1)
        child = f"event_{queue_id(q)}_0"
        q.execute(work.format(f"pgque.{child}", child).encode())
        send(q, "refilled by somebody")
        with refused("PQ008", child, "plan the read again"):
            read(q, slices)

    def test_slices_read_after_their_table_was_rotated_fail_loudly(self, q: Connection) -> None:
        send_many(q, 100)
        last = tick(q)
        slices = plan(q, next_batch(q), 2)
        ranges = [sql for (sql,) in rows(q, RANGE, 1, last, 1, None)]
        truncate_all(q)
        for each in (slices, ranges):
            with refused("PQ008", "plan the read again"):
                read(q, each)


class TestRanges:
    def test_ranges_that_follow_one_another_give_each_event_once(self, q: Connection) -> None:
        ticks = [last_tick(q)]
        for number in range(4):
            send(q, f"event {number}")
            ticks.append(tick(q))
            rotate(q)
        apart = [read_range(q, first, last) for first, last in pairwise(ticks)]
        assert [texts(found) for found in apart] == [[f"event {number}"] for number in range(4)]
        assert read_range(q, ticks[0], ticks[-1]) == [row for found in apart for row in found]
        assert rows(q, RANGE, ticks[1], ticks[1], 4, None) == []

    def test_a_tick_whose_events_were_truncated_is_refused(self, q: Connection) -> None:
        first = last_tick(q)
        for _ in range(4):
            send(q, "gone")
            received(q)
            rotate(q)
        assert value(q, "select count(*) from pgque.tick where tick_id = %s", first) == 1
        with refused("PQ005", f"no tick {first} any more", "are retained"):
            read_range(q, first, last_tick(q))

    def test_ticks_that_are_no_range_are_named(self, q: Connection) -> None:
        tick(q)
        for first, last, message in (
            (1, 99, "no tick 99"),
            (0, 1, "no tick 0"),
            (2, 1, "run backwards"),
            (None, 1, "no tick of any number"),
            (1, None, "no tick of any number"),
        ):
            with refused("PQ005", message):
                read_range(q, first, last)

    def test_an_old_snapshot_gets_no_plan_that_lacks_events(
        self, q: Connection, another: Another
    ) -> None:
        send(q, "truncated")
        last = tick(q)
        reader = another()
        reader.execute("begin isolation level repeatable read")
        assert value(reader, "select count(*) from pgque.queue") == 1
        truncate_all(q)
        with refused("40001"):
            read_range(reader, 1, last)

    def test_a_plan_names_set_columns_and_lets_the_reader_choose(self, q: Connection) -> None:
        first = last_tick(q)
        send(q, "a", "b")
        plain = tick(q)
        value(q, "select pgque.insert_event('q', 't', 'c', null, 'two', null, 'four')")
        last = tick(q)
        sql = "select distinct set_columns from pgque.tick_range_read_plan('q', %s, %s, 2)"
        assert rows(q, sql, first, plain) == [([],)]
        assert rows(q, sql, plain, last) == [(["ev_extra2", "ev_extra4"],)]
        sql = "select slice_from from pgque.tick_range_read_plan('q', 1, %s, 1)"
        ((rest,),) = rows(q, sql, plain)
        assert rows(q, f"select ev_data from {rest} order by 1") == [("a",), ("b",)]
