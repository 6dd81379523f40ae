"""Rows that a loader puts into a queue's tables itself; and the ways in that are closed to it."""

import pytest

from tests.support.queues.sql import Connection, refused

RAW = "select pgque.insert_event_raw('q', null, null, null, null, 't', 'x', null, null, null, null)"


@pytest.fixture
def producer(db: Connection) -> Connection:
    """May write to the queue, and nothing else."""
    db.make_queue()
    connection = db.another()
    connection.execute("set role pgque_writer")
    return connection


def tables(db: Connection) -> list[str]:
    pfx = db.value("select queue_data_pfx from pgque.queue")
    return [f"{pfx}_{number}" for number in range(3)]


def current_table(db: Connection) -> str:
    return str(db.value("select pgque.current_event_table('q')"))


def copy(db: Connection, table: str, *payloads: str, columns: str = "ev_type, ev_data") -> None:
    with db.cursor() as cursor, cursor.copy(f"copy {table} ({columns}) from stdin".encode()) as out:
        for text in payloads:
            out.write_row(("t", text))


def insert(db: Connection, table: str, text: str) -> None:
    db.execute(f"insert into {table} (ev_type, ev_data) values ('t', %s)".encode(), [text])


def close(db: Connection, setting: str = "true") -> None:
    db.value("select pgque.set_queue_config('q', 'disable_insert', %s)", setting)


def test_copied_events_arrive_in_order_with_ids_of_their_own(
    db: Connection, producer: Connection
) -> None:
    texts = [f"row {n}" for n in range(1000)]
    copy(producer, current_table(producer), *texts)
    db.value("select pgque.send('q', 'sent')")
    found = db.events(db.open_batch())
    assert [row[5] for row in found] == [*texts, "sent"]
    assert len({row[0] for row in found}) == 1001


class TestDisableInsert:
    def test_it_holds_through_a_rotation_and_another_installation_until_it_is_opened(
        self, db: Connection, producer: Connection
    ) -> None:
        close(db)
        db.rotate()
        db.value("select pgque.grant_perms('q')")
        db.value("select pgque.upgrade_schema()")
        for table in tables(db):
            with refused("42501"):
                insert(producer, table, "x")
        close(db, "false")
        insert(producer, current_table(producer), "x")
        assert db.received() == ["x"]


class TestLoaderThatAskedOnce:
    def test_the_table_that_is_emptied_next_takes_nothing(
        self, db: Connection, producer: Connection
    ) -> None:
        stale = current_table(producer)
        db.rotate()
        copy(producer, stale, "one rotation later")
        db.rotate()
        with refused("42501", stale.removeprefix("pgque.")):
            insert(producer, stale, "two later")
        assert db.received() == ["one rotation later"]

    def test_one_rotation_later_is_in_time_also_after_one_that_left_out_a_table(
        self, db: Connection, producer: Connection
    ) -> None:
        stale = current_table(producer)
        using = db.another()
        with using.transaction():
            using.rows(f"select from {tables(db)[1]}")
            assert db.rotate() == 1
        copy(producer, stale, "in time")
        assert db.received() == ["in time"]

    def test_an_owner_who_goes_on_filling_it_stops_no_rotation(self, q: Connection) -> None:
        stale = tables(q)[1]  # the one that comes next
        for _ in range(5):
            insert(q, stale, "unread")
            assert q.rotate() == 1
            assert q.value("select queue_cur_table from pgque.queue") != 1
