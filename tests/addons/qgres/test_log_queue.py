"""Entries of a serial queue are events of a queue of the engine, in the same transaction."""

import pytest

from tests.addons.conftest import begun
from tests.support.addons.serial import make_sp, publish
from tests.support.queues.sql import Connection, refused

LOG = "qgres.Orders"


@pytest.fixture
def logged(db: Connection) -> Connection:
    """A database with the serial queue Orders, which is logged for the consumer c."""
    make_sp(db, "Orders", consumers=())
    assert db.value("select qgres.log_queue('orders')") == LOG
    db.value("select pgque.register_consumer(%s, 'c')", LOG)
    return db


def read(db: Connection, columns: str) -> list[tuple[object, ...]]:
    """The events of the next batch, after a tick; finishes it."""
    db.tick(LOG)
    batch = db.value("select pgque.next_batch(%s, 'c')", LOG)
    if batch is None:
        return []
    found = db.rows(f"select {columns} from pgque.get_batch_events(%s)", batch)
    db.value("select pgque.finish_batch(%s)", batch)
    return found


def test_an_entry_is_an_event_with_its_number_and_all_of_its_parts(logged: Connection) -> None:
    logged.value("select qgres.consumer__register('Orders', 'own')::text")
    call = "select qgres.\"Publish\"('orders', {})"
    for parts in (
        """'\\x00ff'::bytea, '{"a": 1}'::jsonb, 'text'""",
        """'{"a": 1}'::jsonb""",
        "'\\x00ff'::bytea",
        "null::text",
    ):
        with logged.transaction(force_rollback=True):
            publish(logged, "rolled back", queue="Orders")
        logged.value(call.format(parts))
    columns = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    assert read(logged, columns) == [
        ("entry", "text", "1", "bytea,jsonb,text", "00ff", '{"a": 1}'),
        ("entry", '{"a": 1}', "2", "jsonb", None, None),
        ("entry", None, "3", "bytea", "00ff", None),
        ("entry", None, "4", "", None, None),
    ]
    own = logged.rows("select sequence_number from qgres.consume('Orders', 'own')")
    assert own == [(1,), (2,), (3,), (4,)]


def test_logging_begins_with_the_call_and_may_be_repeated(db: Connection) -> None:
    make_sp(db, "Orders")
    publish(db, "before", queue="Orders")
    for _ in range(2):
        assert db.value("select qgres.log_queue('ORDERS')") == LOG
    db.value("select pgque.register_consumer(%s, 'c')", LOG)
    publish(db, "after", queue="Orders")
    db.value("select qgres.queue__drop('Orders', true)::text")
    assert read(db, "ev_data, ev_extra1") == [("after", "2")]
    make_sp(db, "x" * 60)
    with refused("PQ005", "1 to 57 bytes"):
        db.value("select qgres.log_queue(%s)", "x" * 60)


def test_publishing_without_the_log_fails_and_loses_nothing(logged: Connection) -> None:
    logged.value("select pgque.drop_queue(%s, true)", LOG)
    log, unlog = "select qgres.log_queue('Orders')", "select qgres.unlog_queue('Orders')"
    with refused("PQ001", LOG, log, unlog):
        publish(logged, "a", queue="Orders")
    logged.value(log)
    assert publish(logged, "b", queue="Orders") == [1]
    logged.value("select pgque.drop_queue(%s, true)", LOG)
    logged.value(f"{unlog}::text")
    assert publish(logged, "c", queue="Orders") == [2]


def test_unlogging_waits_for_a_publisher_whose_entry_is_logged(logged: Connection) -> None:
    publisher = begun(logged.another())
    publish(publisher, "a", queue="Orders")
    unlogging = logged.blocked(Connection.value, "select qgres.unlog_queue('Orders')::text")
    publisher.execute("commit")
    unlogging.result()
    publish(logged, "b", queue="Orders")
    assert read(logged, "ev_data") == [("a",)]
