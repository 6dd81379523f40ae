"""The read plan of a range of ticks: what came between them, with no consumer needed."""

from itertools import pairwise
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
)

PLAN = "select slice_sql from pgque.tick_range_read_plan('q', %s, %s, %s, %s) order by slice_nr"


def read(
    db: Connection, first: int, last: int, *, slices: int = 2, consumer: str | None = None
) -> list[tuple[Any, ...]]:
    plan = rows(db, PLAN, first, last, slices, consumer)
    return sorted(row for (sql,) in plan for row in rows(db, sql))


def texts(found: list[tuple[Any, ...]]) -> list[str]:
    return [row[5] for row in found]


def test_a_range_of_ticks_is_what_a_batch_of_the_same_ticks_is(
    db: Connection, another: Any
) -> None:
    make_queue(db)
    late = another()
    late.execute("begin")
    send(late, "late")
    first = tick(db)
    finish(db, next_batch(db))
    send(db, *map(str, range(200)))
    late.execute("commit")
    last = tick(db)
    send(db, "after")
    batch = next_batch(db)

    assert read(db, first, last) == events(db, batch)
    assert len(events(db, batch)) == 201


def test_ranges_that_follow_one_another_give_each_event_once(db: Connection) -> None:
    make_queue(db)
    ticks = [last_tick(db)]
    for number in range(4):
        send(db, f"event {number}")
        ticks.append(tick(db))
        rotate(db)

    apart = [read(db, first, last) for first, last in pairwise(ticks)]

    assert [texts(found) for found in apart] == [[f"event {number}"] for number in range(4)]
    assert read(db, ticks[0], ticks[-1]) == [row for found in apart for row in found]


def test_a_range_from_a_tick_to_itself_has_no_slice(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    last = tick(db)
    assert rows(db, PLAN, last, last, 4, None) == []


def test_what_is_delivered_again_is_in_the_range_of_its_own_consumer_only(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "again")
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [events(db, batch)[0][0]])
    finish(db, batch)
    first = last_tick(db)
    value(db, "select pgque.maint_retry_events()")
    last = tick(db)

    assert texts(read(db, first, last, consumer="c")) == ["again"]
    assert read(db, first, last, consumer="other") == read(db, first, last) == []


def test_a_tick_whose_events_were_truncated_is_refused(db: Connection) -> None:
    make_queue(db)
    first = last_tick(db)
    for _ in range(4):
        send(db, "gone")
        tick(db)
        drain(db)
        rotate(db)
    assert value(db, "select count(*) from pgque.tick where tick_id = %s", first) == 1
    with refused("PQ005", f"no tick {first} any more", "are retained"):
        read(db, first, last_tick(db))


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (1, 99, "no tick 99"),
        (0, 1, "no tick 0"),
        (2, 1, "run backwards"),
        (None, 1, "no tick of any number"),
        (1, None, "no tick of any number"),
    ],
)
def test_ticks_that_are_no_range_are_named(
    db: Connection, first: int, last: int, message: str
) -> None:
    make_queue(db)
    tick(db)
    with refused("PQ005", message):
        read(db, first, last)


def test_a_transaction_older_than_a_rotation_gets_no_plan_that_lacks_events(
    db: Connection, another: Any
) -> None:
    make_queue(db)
    send(db, "truncated")
    last = tick(db)
    reader = another()
    reader.execute("begin isolation level repeatable read")
    assert value(reader, "select count(*) from pgque.queue") == 1
    drain(db)
    for _ in range(3):
        rotate(db)
    with refused("40001"):
        rows(reader, PLAN, 1, last, 1, None)


def test_a_slice_read_after_its_table_was_truncated_fails_loudly(db: Connection) -> None:
    make_queue(db)
    send(db, "a")
    slices = rows(db, PLAN, 1, tick(db), 1, None)
    drain(db)
    for _ in range(3):
        rotate(db)
    with refused("PQ008", "plan the read again"):
        rows(db, slices[0][0])


def test_a_plan_names_the_columns_that_are_set(db: Connection) -> None:
    make_queue(db)
    first = last_tick(db)
    send(db, "a")
    plain = tick(db)
    value(db, "select pgque.insert_event('q', 't', 'b', null, 'two', null, 'four')")
    last = tick(db)
    sql = "select distinct set_columns from pgque.tick_range_read_plan('q', %s, %s, 2)"
    assert rows(db, sql, first, plain) == [([],)]
    assert rows(db, sql, plain, last) == [(["ev_extra2", "ev_extra4"],)]


def test_a_readers_own_columns_of_a_slice_are_its_events(db: Connection) -> None:
    make_queue(db)
    send(db, "a", "b")
    ((rest,),) = rows(
        db, "select slice_from from pgque.tick_range_read_plan('q', 1, %s, 1)", tick(db)
    )
    assert rows(db, f"select ev_data from {rest} order by 1") == [("a",), ("b",)]
