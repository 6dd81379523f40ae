"""Batches small and large, read plans and ranges of ticks: each holds exactly its events.

A plan's slices are run by any reader by itself. Ranges need no consumer.
"""

from typing import Any

import pytest

from tests.support.queues.sql import Connection, refused

PLAN = "select slice_sql from pgque.batch_read_plan(%s, %s) order by slice_nr"
RANGE = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, %s, %s) order by slice_nr"


def plan(db: Connection, batch: int, max_slices: int) -> list[str]:
    return [sql for (sql,) in db.rows(PLAN, batch, max_slices)]


def read(db: Connection, slices: list[str]) -> list[tuple[Any, ...]]:
    return sorted(row for sql in slices for row in db.rows(sql))


def read_range(
    db: Connection, first: int | None, last: int | None, consumer: str | None = None
) -> list[tuple[Any, ...]]:
    return read(db, [sql for (sql,) in db.rows(RANGE, first, last, 2, consumer)])


def texts(found: list[tuple[Any, ...]]) -> list[str]:
    return [row[5] for row in found]


def send_many(db: Connection, count: int, size: int = 100) -> None:
    db.value(
        "select cardinality(pgque.send_batch('q', 't', array("
        "select rpad(n::text || ' ', %s, 'x') from generate_series(1, %s) n)))",
        size,
        count,
    )


def truncate_all(db: Connection) -> None:
    """Finishes all, and rotates it away."""
    db.drain()
    for _ in range(3):
        db.rotate()


def test_a_range_has_its_consumers_retries_and_no_others(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    batch = db.open_batch("a", "b")
    db.value("select pgque.nack_batch(%s, %s, '0')", batch, db.event_ids(batch)[:1])
    db.finish(batch)
    db.value("select pgque.maint_retry_events()")
    last = db.tick()
    assert texts(read_range(db, last - 1, last, "c")) == ["a"]
    assert read_range(db, last - 1, last, "other") == read_range(db, last - 1, last) == []


def test_a_small_batch_alone_is_read_by_the_queues_function(db: Connection) -> None:
    db.make_queue(consumers=("c", "late"))
    small = db.open_batch("a")
    db.value("select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, 1000)")
    db.finish(db.next_batch(consumer="late"))
    db.publish("b")
    large = db.next_batch(consumer="late")
    name = f"event_{db.queue_id()}_read"
    sql = "select oid::regprocedure::text from pg_proc where proname = %s"
    ((function,),) = db.rows(sql, name)
    for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
        right = "select has_function_privilege(%s, %s, 'execute')"
        assert not db.value(right, role, function)
    db.execute(f"drop function {function}".encode())
    assert db.payloads(large) == ["b"]
    with refused("42883", name):
        db.events(small)
    db.value("select pgque.upgrade_schema()")
    assert db.payloads(small) == ["a"]


class TestPlans:
    @pytest.fixture
    def batch(self, q: Connection) -> int:
        """A batch in all three tables, with foreign events between its own, and gaps."""
        q.value("select pgque.set_snapshot_patience('0')::text")  # the late one's, too
        late = q.another()
        late.execute("begin")
        late.send("late 1")
        send_many(q, 300)
        q.finish(q.open_batch())
        for number in range(3):
            send_many(q, 400)
            with q.transaction(force_rollback=True):
                send_many(q, 100)
            if number < 2:
                assert q.rotate() == 1
        late.send("late 2")
        late.execute("commit")
        open_still = q.another()
        open_still.execute("begin")
        open_still.send("not in this batch")
        q.tick()
        q.send("after the tick")
        found: int = q.next_batch()
        assert len(q.events(found)) == 1202
        return found

    def test_the_slices_together_are_the_batch(self, q: Connection, batch: int) -> None:
        expected = q.events(batch)
        tables = q.value("select count(*) from pgque.batch_event_tables(%s)", batch)
        for max_slices in (1, 2, 3, 7, 50):
            slices = plan(q, batch, max_slices)
            assert read(q, slices) == expected
            assert 1 <= len(slices) <= max(max_slices, tables)
        sql = "select prev_tick_id, tick_id from pgque.get_batch_info(%s)"
        ((first, last),) = q.rows(sql, batch)
        assert read_range(q, first, last) == expected

    def test_a_reader_runs_slices_alone(self, q: Connection, batch: int) -> None:
        expected = q.events(batch)
        reader = q.another()
        reader.execute("set role pgque_reader")
        reader.execute("set search_path = ''")
        slices = plan(reader, batch, 3)
        send_many(q, 500)
        q.tick()
        q.rotate()
        assert read(reader, slices) == expected

    def test_a_large_batch_is_split_as_asked_into_shares_of_blocks(self, q: Connection) -> None:
        send_many(q, 20_000)
        slices = plan(q, q.open_batch(), 4)
        shares = [len(q.rows(sql)) for sql in slices]
        assert len(shares) == 4
        assert max(shares) < 2 * min(shares)
        for sql in slices:
            lines = [line for (line,) in q.rows("explain " + sql)]
            assert "Tid Range Scan on event_" in "\n".join(lines)

    def test_an_empty_batch_has_no_slice_and_no_plan_is_without(self, q: Connection) -> None:
        batch = q.open_batch()
        assert plan(q, batch, 4) == []
        for max_slices in (0, -1, None):
            with refused("PQ005", "slices"):
                q.rows(PLAN, batch, max_slices)

    def test_the_plan_tells_the_bytes_of_payloads_and_of_all_texts(self, q: Connection) -> None:
        q.value("select pgque.insert_event('q', 'type', 'äb', 'one', null, '', 'four')")
        q.value("select pgque.insert_event('q', 'type', null)")
        q.value("select pgque.send('q', 'type', repeat('x', 100000))")
        q.tick()
        sizes = "select distinct payload_bytes, batch_bytes from pgque.batch_read_plan(%s, 3)"
        assert q.rows(sizes, q.next_batch()) == [(100_003, 100_022)]

    def test_a_slice_of_a_rewritten_table_fails_loudly(self, q: Connection) -> None:
        send_many(q, 100)
        batch, child = q.open_batch(), f"event_{q.queue_id()}_0"
        for work in ("vacuum full {}", "cluster {} using {}_txid_idx", "truncate {}"):
            slices = plan(q, batch, 1)
            q.execute(work.format(f"pgque.{child}", child).encode())
            q.send("refilled by somebody")
            with refused("PQ008", child, "plan the read again"):
                read(q, slices)


class TestRanges:
    def test_ticks_that_are_no_range_are_named(self, q: Connection) -> None:
        q.tick()
        for first, last, message in (
            (1, 99, "no tick 99"),
            (0, 1, "no tick 0"),
            (2, 1, "in the wrong order"),
            (None, 1, "no tick of any number"),
            (1, None, "no tick of any number"),
        ):
            with refused("PQ005", message):
                read_range(q, first, last)

    def test_an_old_snapshot_gets_no_plan_that_lacks_events(self, q: Connection) -> None:
        last = q.publish("truncated")
        reader = q.another()
        reader.execute("begin isolation level repeatable read")
        assert reader.value("select count(*) from pgque.queue") == 1
        truncate_all(q)
        with refused("40001"):
            read_range(reader, 1, last)

    def test_a_read_only_plan_that_rotation_overtakes_is_refused(self, q: Connection) -> None:
        last = q.publish("truncated")
        assert [q.rotate(), q.rotate()] == [1, 1]
        q.drain()
        rotation = q.another()
        rotation.execute("begin")
        assert rotation.value("select pgque.maint_rotate_tables_step1('q')") == 1

        def read(reader: Connection) -> list[str]:
            reader.execute("set default_transaction_read_only to on")
            return read_range(reader, 1, last)

        with refused("PQ005", "no tick 1 any more"):
            plan = q.blocked(read)
            rotation.execute("commit")
            plan.result()

    def test_a_plan_names_set_columns_and_lets_the_reader_choose(self, q: Connection) -> None:
        first = q.last_tick()
        plain = q.publish("a", "b")
        q.value("select pgque.insert_event('q', 't', 'c', null, 'two', null, 'four')")
        last = q.tick()
        sql = "select distinct set_columns from pgque.tick_range_read_plan('q', %s, %s, 2)"
        assert q.rows(sql, first, plain) == [([],)]
        assert q.rows(sql, plain, last) == [(["ev_extra2", "ev_extra4"],)]
        sql = "select slice_from from pgque.tick_range_read_plan('q', 1, %s, 1)"
        ((rest,),) = q.rows(sql, plain)
        assert q.rows(f"select ev_data from {rest} order by 1") == [("a",), ("b",)]
