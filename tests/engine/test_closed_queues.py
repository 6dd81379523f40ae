"""Ways into a queue's tables that are closed: by disable_insert, and before a rotation."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    drain,
    make_queue,
    refused,
    rotate,
    rows,
    tick,
    value,
)

Another = Callable[[], Connection]
INSERT = "insert into {} (ev_type, ev_data) values ('t', %s)"
RAW = "select pgque.insert_event_raw('q', null, null, null, null, 't', 'x', null, null, null, null)"


@pytest.fixture
def producer(another: Another) -> Connection:
    connection = another()
    connection.execute("set role pgque_writer")
    return connection


def tables(db: Connection) -> list[str]:
    pfx = value(db, "select queue_data_pfx from pgque.queue")
    return [f"{pfx}_{number}" for number in range(3)]


def current_table(db: Connection) -> str:
    return str(value(db, "select pgque.current_event_table('q')"))


def close(db: Connection, setting: str = "true") -> None:
    value(db, "select pgque.set_queue_config('q', 'disable_insert', %s)", setting)


def insert(db: Connection, table: str, text: str) -> None:
    db.execute(INSERT.format(table).encode(), [text])


class TestDisableInsert:
    def test_no_table_of_the_queue_takes_a_row(self, db: Connection, producer: Connection) -> None:
        make_queue(db)
        close(db)
        for table in tables(db):
            with refused("42501"):
                insert(producer, table, "x")
            copying = f"copy {table} (ev_type, ev_data) from stdin".encode()
            with refused("42501"), producer.cursor() as cursor, cursor.copy(copying) as out:
                out.write_row(("t", "x"))

    def test_insert_event_raw_is_refused(self, db: Connection) -> None:
        make_queue(db)
        close(db)
        with refused("PQ006", '"q"'):
            value(db, RAW)

    def test_it_holds_through_a_rotation_and_another_installation(
        self, db: Connection, producer: Connection
    ) -> None:
        make_queue(db)
        close(db)
        rotate(db)
        value(db, "select pgque.grant_perms('q')")
        value(db, "select pgque.upgrade_schema()")
        for table in tables(db):
            with refused("42501"):
                insert(producer, table, "x")

    def test_an_opened_queue_takes_copies_again(self, db: Connection, producer: Connection) -> None:
        make_queue(db)
        close(db)
        close(db, "false")
        insert(producer, current_table(producer), "x")
        tick(db)
        assert drain(db) == ["x"]


class TestLoaderThatAskedOnce:
    def test_the_table_that_is_emptied_next_takes_nothing(
        self, db: Connection, producer: Connection
    ) -> None:
        make_queue(db)
        stale = current_table(producer)
        rotate(db)
        insert(producer, stale, "one rotation later")
        rotate(db)
        with refused("42501", stale.removeprefix("pgque.")):
            insert(producer, stale, "two later")
        tick(db)
        assert drain(db) == ["one rotation later"]

    def test_a_loader_that_asks_again_goes_on(self, db: Connection, producer: Connection) -> None:
        make_queue(db)
        for number in range(7):
            insert(producer, current_table(producer), str(number))
            tick(db)
            assert drain(db) == [str(number)]
            assert rotate(db) == 1

    def test_an_owner_who_goes_on_filling_it_stops_no_rotation(self, db: Connection) -> None:
        make_queue(db)
        stale = tables(db)[1]  # the one that comes next
        for _ in range(5):
            insert(db, stale, "unread")
            assert rotate(db) == 1
            assert value(db, "select queue_cur_table from pgque.queue") != 1

    def test_all_that_was_loaded_arrives(self, db: Connection) -> None:
        make_queue(db)
        arrived = []
        for number in range(6):
            insert(db, tables(db)[1], str(number))
            rotate(db)
            tick(db)
            arrived += drain(db)
        assert arrived == [str(number) for number in range(6)]

    def test_the_table_is_emptied_when_the_loader_stops(self, db: Connection) -> None:
        make_queue(db)
        for _ in range(3):
            insert(db, tables(db)[1], "x")
            rotate(db)
        tick(db)
        drain(db)
        for _ in range(3):
            rotate(db)
        assert value(db, f"select count(*) from {tables(db)[1]}") == 0

    def test_a_transaction_in_one_table_keeps_no_other_from_rotation(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        using = another()
        with using.transaction():
            rows(using, f"select from {tables(db)[1]}")
            assert (rotate(db), value(db, "select queue_cur_table from pgque.queue")) == (1, 2)
