"""Entries of a serial queue are events of a queue of the engine, in the same transaction."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, pgque_asset
from pgque_dagster.client import Client
from tests.dagster.support import StoringIOManager, materialize
from tests.support.publishers import Publishers
from tests.support.queues import Connection, drain, refused, rows, tick, value, wait_until_blocked
from tests.support.serial import make_sp, publish

Another = Callable[[], Connection]
LOG = "qgres.Orders"


@pytest.fixture
def logged(db: Connection) -> Connection:
    """A database with the serial queue Orders, which is logged for the consumer c."""
    make_sp(db, "Orders", consumers=())
    assert value(db, "select qgres.log_queue('orders')") == LOG
    value(db, "select pgque.register_consumer(%s, 'c')", LOG)
    return db


def read(db: Connection, columns: str) -> list[tuple[object, ...]]:
    """The events of the next batch, after a tick; finishes it."""
    tick(db, LOG)
    batch = value(db, "select pgque.next_batch(%s, 'c')", LOG)
    if batch is None:
        return []
    found = rows(db, f"select {columns} from pgque.get_batch_events(%s)", batch)
    value(db, "select pgque.finish_batch(%s)", batch)
    return found


def test_an_entry_is_an_event_with_its_number(logged: Connection) -> None:
    publish(logged, "a", "b", queue="orders")
    expected = [("entry", "a", "1", "text"), ("entry", "b", "2", "text")]
    assert read(logged, "ev_type, ev_data, ev_extra1, ev_extra2") == expected


def test_all_parts_of_an_entry_are_in_the_event(logged: Connection) -> None:
    columns = "ev_data, ev_extra2, ev_extra3, ev_extra4"
    call = "select qgres.\"Publish\"('Orders', {})"
    for parts in (
        """'\\x00ff'::bytea, '{"a": 1}'::jsonb, 'text'""",
        """'{"a": 1}'::jsonb""",
        "'\\x00ff'::bytea",
        "null::text",
    ):
        value(logged, call.format(parts))
    assert read(logged, columns) == [
        ("text", "bytea,jsonb,text", "00ff", '{"a": 1}'),
        ('{"a": 1}', "jsonb", None, None),
        (None, "bytea", "00ff", None),
        (None, "", None, None),
    ]


def test_a_rollback_takes_both_back(logged: Connection) -> None:
    with logged.transaction(force_rollback=True):
        publish(logged, "a", queue="Orders")
    publish(logged, "b", queue="Orders")
    assert read(logged, "ev_data, ev_extra1") == [("b", "1")]


def test_logging_begins_with_the_call_and_may_be_repeated(db: Connection) -> None:
    make_sp(db, "Orders")
    publish(db, "before", queue="Orders")
    for _ in range(2):
        assert value(db, "select qgres.log_queue('ORDERS')") == LOG
    value(db, "select pgque.register_consumer(%s, 'c')", LOG)
    publish(db, "after", queue="Orders")
    assert read(db, "ev_data, ev_extra1") == [("after", "2")]


def test_publishing_without_the_log_fails_and_loses_nothing(logged: Connection) -> None:
    value(logged, "select pgque.drop_queue(%s, true)", LOG)
    log, unlog = "select qgres.log_queue('Orders')", "select qgres.unlog_queue('Orders')"
    with refused("PQ001", LOG, log, unlog):
        publish(logged, "a", queue="Orders")
    value(logged, log)
    assert publish(logged, "b", queue="Orders") == [1]
    value(logged, "select pgque.drop_queue(%s, true)", LOG)
    value(logged, f"{unlog}::text")
    assert publish(logged, "c", queue="Orders") == [2]


def test_unlogging_waits_for_a_publisher_whose_entry_is_logged(
    logged: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    publisher = another()
    waiting = another()
    with publisher.transaction():
        publish(publisher, "a", queue="Orders")
        unlogging = background.submit(value, waiting, "select qgres.unlog_queue('Orders')::text")
        wait_until_blocked(logged, waiting)
    unlogging.result(10)
    publish(logged, "b", queue="Orders")
    assert read(logged, "ev_data") == [("a",)]


def test_a_name_too_long_for_the_log_is_refused(db: Connection) -> None:
    make_sp(db, "x" * 60)
    with refused("PQ005", "1 to 57 bytes"):
        value(db, "select qgres.log_queue(%s)", "x" * 60)


def test_dropping_the_queue_leaves_its_log(logged: Connection) -> None:
    publish(logged, "a", queue="Orders")
    value(logged, "select qgres.queue__drop('Orders', true)::text")
    assert read(logged, "ev_data") == [("a",)]


def test_batches_are_ranges_of_numbers_in_order(
    logged: Connection, database_url: str, another: Another, background: ThreadPoolExecutor
) -> None:
    found: list[int] = []
    with Publishers(database_url, 3, 40, queue="Orders") as publishers:
        while publishers.are_running:
            found += [int(str(number)) for (number,) in read(logged, "ev_extra1")]
    while batch := read(logged, "ev_extra1"):
        found += [int(str(number)) for (number,) in batch]
    assert found == list(range(1, len(found) + 1))
    assert len(found) == sum(len(texts) for texts in publishers.committed.values())


@pgque_asset(queue=LOG, consumer="c")
def entries(batch: SparkBatch) -> list[tuple[int, int]]:
    stored = batch.events().collect()
    return sorted((int(row.ev_extra1), json.loads(row.ev_data)["n"]) for row in stored)


def test_a_spark_asset_reads_a_serial_queue(
    logged: Connection, database_url: str, spark: SparkSession
) -> None:
    stored = StoringIOManager()
    for batch in (range(1, 4), range(4, 6)):
        for n in batch:
            sql = "select qgres.\"Publish\"('Orders', jsonb_build_object('n', %s::int))"
            value(logged, sql, 10 * n)
        tick(logged, LOG)
        with Client(database_url) as client:
            assert materialize(entries, client.url, spark, io_manager=stored).success
    assert stored.stored == [[(1, 10), (2, 20), (3, 30)], [(4, 40), (5, 50)]]
    assert drain(logged, LOG) == []


def test_consumers_of_the_serial_queue_are_independent_of_its_log(logged: Connection) -> None:
    value(logged, "select qgres.consumer__register('Orders', 'own')::text")
    publish(logged, "a", "b", queue="Orders")
    found = rows(logged, "select sequence_number from qgres.consume('Orders', 'own')")
    assert found == [(1,), (2,)]
    assert read(logged, "ev_extra1") == [("1",), ("2",)]
