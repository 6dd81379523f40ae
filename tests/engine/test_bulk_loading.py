"""COPY into the current event table, by a producer that has no other right."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    make_queue,
    next_batch,
    refused,
    rotate,
    tick,
    value,
)


@pytest.fixture
def producer(another: Callable[[], Connection]) -> Connection:
    connection = another()
    connection.execute("set role pgque_writer")
    return connection


def copy(db: Connection, table: str, *payloads: str, columns: str = "ev_type, ev_data") -> None:
    with db.cursor() as cursor, cursor.copy(f"copy {table} ({columns}) from stdin".encode()) as out:
        for text in payloads:
            out.write_row(("t", text))


def test_copied_events_arrive_in_order(db: Connection, producer: Connection) -> None:
    make_queue(db)
    texts = [f"row {n}" for n in range(1000)]
    copy(producer, value(producer, "select pgque.current_event_table('q')"), *texts)
    tick(db)
    assert drain(db) == texts


def test_copied_and_sent_events_have_different_ids(db: Connection, producer: Connection) -> None:
    make_queue(db)
    copy(producer, value(producer, "select pgque.current_event_table('q')"), "a", "b")
    value(db, "select pgque.send('q', 'c')")
    tick(db)
    assert len({row[0] for row in events(db, next_batch(db))}) == 3


def test_a_table_name_from_before_a_rotation_still_works(
    db: Connection, producer: Connection
) -> None:
    make_queue(db)
    stale = value(producer, "select pgque.current_event_table('q')")
    rotate(db)
    copy(producer, stale, "late")
    tick(db)
    assert drain(db) == ["late"]


@pytest.mark.parametrize("column", ["ev_id", "ev_time", "ev_txid", "ev_owner", "ev_retry"])
def test_a_producer_cannot_fill_the_queues_own_columns(
    db: Connection, producer: Connection, column: str
) -> None:
    make_queue(db)
    table = value(producer, "select pgque.current_event_table('q')")
    with refused("42501"):
        copy(producer, table, "1", columns=f"ev_type, {column}")


@pytest.mark.parametrize("verb", ["select * from", "delete from", "truncate", "update"])
def test_a_producer_can_neither_read_nor_change_events(
    db: Connection, producer: Connection, verb: str
) -> None:
    make_queue(db)
    table = value(producer, "select pgque.current_event_table('q')")
    with refused("42501"):
        producer.execute(f"{verb} {table}{' set ev_data = 1' * (verb == 'update')}".encode())
