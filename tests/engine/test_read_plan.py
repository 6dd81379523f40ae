"""The read plan: slices that any reader runs by itself, together exactly the batch."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    events,
    finish,
    make_queue,
    next_batch,
    queue_id,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

Another = Callable[[], Connection]
SLICES = [1, 2, 3, 7, 50]


def plan(db: Connection, batch: int, max_slices: int) -> list[str]:
    return [
        sql
        for (sql,) in rows(
            db,
            "select slice_sql from pgque.batch_read_plan(%s, %s) order by slice_nr",
            batch,
            max_slices,
        )
    ]


def read(db: Connection, slices: list[str]) -> list[tuple[Any, ...]]:
    return sorted(row for sql in slices for row in rows(db, sql))


def send_many(db: Connection, count: int, size: int = 100) -> None:
    value(
        db,
        "select cardinality(pgque.send_batch('q', 't', array("
        "select rpad(n::text || ' ', %s, 'x') from generate_series(1, %s) n)))",
        size,
        count,
    )


def batch_across_rotations(db: Connection, another: Another) -> Any:
    """A batch in all three tables, with foreign events between its own, and gaps."""
    make_queue(db)
    value(db, "select pgque.set_snapshot_patience('0')::text")  # the late one's, too
    late = another()
    late.execute("begin")
    send(late, "late 1")
    send_many(db, 300)
    tick(db)
    finish(db, next_batch(db))
    for number in range(3):
        send_many(db, 400)
        with db.transaction(force_rollback=True):
            send_many(db, 100)
        if number < 2:
            assert rotate(db) == 1
    send(late, "late 2")
    late.execute("commit")
    open_still = another()
    open_still.execute("begin")
    send(open_still, "not in this batch")
    tick(db)
    send(db, "after the tick")
    return next_batch(db)


@pytest.mark.parametrize("max_slices", SLICES)
def test_the_slices_together_are_the_batch(
    db: Connection, another: Another, max_slices: int
) -> None:
    batch = batch_across_rotations(db, another)
    expected = events(db, batch)
    assert len(expected) == 1202
    assert read(db, plan(db, batch, max_slices)) == expected


@pytest.mark.parametrize("max_slices", SLICES)
def test_slices_are_no_more_than_asked_for_or_one_for_each_table(
    db: Connection, another: Another, max_slices: int
) -> None:
    batch = batch_across_rotations(db, another)
    tables = value(db, "select count(*) from pgque.batch_event_tables(%s)", batch)
    assert 1 <= len(plan(db, batch, max_slices)) <= max(max_slices, tables)


def test_a_large_batch_is_split_as_often_as_asked_for(db: Connection) -> None:
    make_queue(db)
    send_many(db, 5000)
    tick(db)
    assert len(plan(db, next_batch(db), 4)) == 4


def test_each_slice_of_a_large_batch_holds_its_share(db: Connection) -> None:
    make_queue(db)
    send_many(db, 5000)
    tick(db)
    shares = [len(rows(db, sql)) for sql in plan(db, next_batch(db), 4)]
    assert max(shares) < 2 * min(shares)


def test_a_batch_with_transactions_in_progress_at_both_ends_is_exact(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    early, through, late = another(), another(), another()
    for session, text in ((early, "early"), (through, "through")):
        session.execute("begin")
        send(session, text)
    tick(db)
    finish(db, next_batch(db))
    late.execute("begin")
    send(late, "late")
    early.execute("commit")
    send(db, "plain")
    tick(db)
    batch = next_batch(db)
    assert [row[5] for row in events(db, batch)] == ["early", "plain"]
    assert read(db, plan(db, batch, 3)) == events(db, batch)


def test_a_slice_leaves_other_consumers_retries_out(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    send(db, "a")
    tick(db)
    batch = next_batch(db, consumer="other")
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [events(db, batch)[0][0]])
    finish(db, batch)
    finish(db, next_batch(db))
    value(db, "select pgque.maint_retry_events()")
    tick(db)
    mine, others = next_batch(db), next_batch(db, consumer="other")
    assert (plan(db, mine, 2), len(read(db, plan(db, others, 2)))) == ([], 1)


def test_an_empty_batch_has_no_slice(db: Connection) -> None:
    make_queue(db)
    tick(db)
    assert plan(db, next_batch(db), 4) == []


def test_the_plan_tells_how_many_events_there_are(db: Connection, another: Another) -> None:
    batch = batch_across_rotations(db, another)
    counts = rows(db, "select distinct batch_events from pgque.batch_read_plan(%s, 7)", batch)
    assert counts == [(1202,)]


def test_the_plan_tells_the_bytes_of_payloads_and_of_all_texts(db: Connection) -> None:
    make_queue(db)
    value(db, "select pgque.insert_event('q', 'type', 'äb', 'one', null, '', 'four')")
    value(db, "select pgque.insert_event('q', 'type', null)")
    value(db, "select pgque.send('q', 'type', repeat('x', 100000))")
    tick(db)

    sizes = "select distinct payload_bytes, batch_bytes from pgque.batch_read_plan(%s, 3)"

    assert rows(db, sizes, next_batch(db)) == [(100_003, 100_022)]


def test_the_plan_tells_the_times_of_the_oldest_and_newest_event_of_all_tables(
    db: Connection, another: Another
) -> None:
    batch = batch_across_rotations(db, another)

    ((oldest, newest),) = rows(
        db, "select distinct oldest_event, newest_event from pgque.batch_read_plan(%s, 7)", batch
    )

    times = [event[1] for event in events(db, batch)]
    assert (oldest, newest) == (min(times), max(times))
    assert oldest < newest


def test_a_slice_of_a_larger_batch_reads_its_blocks_only(db: Connection) -> None:
    make_queue(db)
    send_many(db, 20_000)
    tick(db)
    for sql in plan(db, next_batch(db), 4):
        lines = [line for (line,) in rows(db, "explain " + sql)]
        assert "Tid Range Scan on event_" in "\n".join(lines)


def test_a_reader_runs_slices_by_itself(db: Connection, another: Another) -> None:
    batch = batch_across_rotations(db, another)
    reader = another()
    reader.execute("set role pgque_reader")
    assert read(reader, plan(reader, batch, 3)) == events(db, batch)


def test_a_slice_needs_no_search_path(db: Connection, another: Another) -> None:
    batch = batch_across_rotations(db, another)
    slices = plan(db, batch, 3)
    db.execute("set search_path = ''")
    assert len(read(db, slices)) == 1202


def test_slices_stay_readable_while_the_queue_works_on(db: Connection, another: Another) -> None:
    batch = batch_across_rotations(db, another)
    expected, slices = events(db, batch), plan(db, batch, 3)
    send_many(db, 500)
    tick(db)
    rotate(db)
    assert read(db, slices) == expected


@pytest.mark.parametrize("work", ["truncate {}", "vacuum full {}", "cluster {} using {}_txid_idx"])
def test_a_slice_of_a_table_that_was_rewritten_fails_loudly(db: Connection, work: str) -> None:
    make_queue(db)
    send_many(db, 100)
    tick(db)
    slices = plan(db, next_batch(db), 1)
    child = f"event_{queue_id(db)}_0"
    db.execute(work.format(f"pgque.{child}", child).encode())
    with refused("PQ008", child, "plan the read again"):
        read(db, slices)


def test_a_slice_read_after_its_batch_was_finished_and_rotated_fails_loudly(db: Connection) -> None:
    make_queue(db)
    send_many(db, 100)
    tick(db)
    batch = next_batch(db)
    slices = plan(db, batch, 2)
    finish(db, batch)
    for _ in range(3):
        rotate(db)
    with refused("PQ008"):
        read(db, slices)


def test_a_slice_that_finds_no_row_fails_as_loudly(db: Connection) -> None:
    make_queue(db)
    send_many(db, 100)
    tick(db)
    slices = plan(db, next_batch(db), 1)
    db.execute(f"truncate pgque.event_{queue_id(db)}_0".encode())
    send(db, "refilled by somebody")
    with refused("PQ008"):
        read(db, slices)


@pytest.mark.parametrize("max_slices", [0, -1, None])
def test_a_plan_without_slices_is_refused(db: Connection, max_slices: int | None) -> None:
    make_queue(db)
    tick(db)
    with refused("PQ005", "slices"):
        rows(db, "select * from pgque.batch_read_plan(%s, %s)", next_batch(db), max_slices)
