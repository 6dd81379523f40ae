"""A partitioned SP queue has one order for each key."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgque_dagster import PgqueResource
from pgque_dagster.client import DatabaseError
from tests.support.logins import as_login
from tests.support.queues import (
    Connection,
    connect,
    drain,
    refused,
    rows,
    tick,
    value,
    wait_until_blocked,
)
from tests.support.serial import consume, make_sp

Another = Callable[[], Connection]
KEYS = [f"key{nr}" for nr in range(20)]


@pytest.fixture
def parted(db: Connection) -> Connection:
    """A database with the queue Orders in four partitions, each with the consumer c."""
    assert len(rows(db, "select qgres.queue__create('Orders', 'sp', 4)")) == 4
    for part in range(4):
        value(db, "select qgres.consumer__register(%s, 'c')::text", f"orders#{part}")
    return db


def publish(db: Connection, key: str | None, text: str) -> int:
    sql = "select qgres.\"Publish\"('orders', %s::text, null, null, %s::text)"
    number: int = value(db, sql, key, text)
    return number


@pytest.mark.parametrize(
    "call",
    ["consumer__register('orders', 'd')", "consume('ORDERS', 'c')", "\"Publish\"('orders', 'a')"],
)
def test_the_name_without_a_partition_gets_a_hint(parted: Connection, call: str) -> None:
    with refused("P0002", "does not exist", "It has partitions", "qgres.queue__partition"):
        rows(parted, f"select qgres.{call}")


def test_each_partition_has_its_own_numbers_and_keeps_the_order_of_its_keys(
    parted: Connection,
) -> None:
    for turn in range(3):
        for key in KEYS:
            publish(parted, key, f"{key}:{turn}")
    found = [consume(parted, queue=f"Orders#{part}") for part in range(4)]
    for part in found:
        assert [number for number, _ in part] == list(range(1, len(part) + 1))
    texts = [text for part in found for _, text in part]
    assert sorted(texts) == sorted(f"{key}:{turn}" for key in KEYS for turn in range(3))
    for key in KEYS:
        turns = [text for text in texts if text.startswith(f"{key}:")]
        assert turns == [f"{key}:{turn}" for turn in range(3)]
        assert sum(any(text in turns for _, text in part) for part in found) == 1
    assert sum(bool(part) for part in found) > 1


def test_publishers_of_two_partitions_do_not_wait(parted: Connection, another: Another) -> None:
    partition = "select qgres.queue__partition('orders', %s)"
    first = value(parted, partition, KEYS[0])
    other_key = next(key for key in KEYS if value(parted, partition, key) != first)
    with parted.transaction():
        publish(parted, KEYS[0], "a")
        assert publish(another(), other_key, "b") == 1


def test_a_key_may_be_null(parted: Connection) -> None:
    null, empty = rows(
        parted, "select qgres.queue__partition('orders', k) from unnest(array[null, '']) k"
    )
    assert null == empty
    assert publish(parted, None, "a") == 1


def test_publishing_to_a_partition_needs_the_role(parted: Connection, database_url: str) -> None:
    with connect(as_login(database_url)) as stranger, refused("42501", "_Publish"):
        publish(stranger, "a", "b")
    with connect(as_login(database_url, "qgres__queue_insert")) as member:
        assert publish(member, "a", "b") == 1


@pytest.mark.parametrize(
    ("call", "sqlstate", "text"),
    [
        ("queue__create('q', 'SR', 2)", "22023", 'only "Serial Publisher" queues have partitions'),
        ("queue__create('q', null, 2)", "22023", 'only "Serial Publisher" queues have partitions'),
        ("queue__create('q', 'SP', 0)", "22023", "partitions must be from 1 to 256, it is 0"),
        ("queue__create('q', 'SP', 257)", "22023", "from 1 to 256, it is 257"),
        ("queue__create('q', 'SP', null)", "22023", "from 1 to 256, it is <NULL>"),
        ("queue__create(null, 'SP', 2)", "23502", "the name of the queue is null"),
        ("queue__create('ORDERS', 'SP', 2)", "23505", '"ORDERS" already exists with 4 partitions'),
        ("queue__create('plain', 'SP', 2)", "23505", 'queue "plain#0" already exists'),
        ("queue__create('PLAIN#0', 'SP', 2)", "23505", 'queue "PLAIN#0" already exists'),
        ("queue__create('q', 'XY', 2)", "22P02", "invalid input value for enum"),
        ("queue__partition('plain', 'k')", "P0002", 'queue "plain" does not exist'),
        ("queue__partition(null, 'k')", "P0002", 'queue "<NULL>" does not exist'),
    ],
)
def test_bad_arguments_are_refused(parted: Connection, call: str, sqlstate: str, text: str) -> None:
    value(parted, "select qgres.queue__create('plain#0', 'SP')")
    with refused(sqlstate, text):
        rows(parted, f"select qgres.{call}")


@pytest.mark.parametrize("kind", ["SP", "SR"])
def test_a_queue_with_partitions_leaves_its_name_to_no_other(parted: Connection, kind: str) -> None:
    partitions = '"Orders#0" to "Orders#3"'
    with refused("23505", 'queue "orders" already exists with 4 partitions', partitions):
        value(parted, "select qgres.queue__create('orders', %s)", kind)
    rows(parted, "select qgres.queue__create('One', 'SP', 1)")
    with refused("23505", 'queue "one" already exists with 1 partition', '"One#0"'):
        value(parted, "select qgres.queue__create('one', %s)", kind)
    assert value(parted, "select count(*) from qgres.queue") == 5


def test_the_name_of_partitions_is_free_when_the_last_one_is_dropped(parted: Connection) -> None:
    for part in range(4):
        with refused("23505", "with 4 partitions"):
            make_sp(parted, "orders")
        value(parted, "select qgres.queue__drop(%s, true)::text", f"orders#{part}")
    make_sp(parted, "orders")


@pytest.mark.parametrize("kind", ["SP", "SR"])
def test_a_queue_without_partitions_gets_none(db: Connection, kind: str) -> None:
    value(db, "select qgres.queue__create('Parcels', %s)", kind)
    drop = "select qgres.queue__drop('parcels')"
    with refused("23505", 'queue "parcels" already exists without partitions', drop):
        rows(db, "select qgres.queue__create('parcels', 'SP', 8)")
    assert rows(db, "select queue_name from qgres.queue") == [("Parcels",)]
    value(db, f"{drop}::text")
    rows(db, "select qgres.queue__create('parcels', 'SP', 8)")
    assert value(db, "select count(*) from qgres.queue") == 8


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("'Orders', 'SP', 2", "'orders', 'SP'", "with 2 partitions"),
        ("'Orders', 'SP'", "'orders', 'SP', 2", "without partitions"),
        ("'Orders', 'SP', 2", "'orders', 'SP', 3", "with 2 partitions"),
    ],
)
def test_two_sessions_that_create_both_are_told_apart(
    db: Connection,
    another: Another,
    background: ThreadPoolExecutor,
    first: str,
    second: str,
    text: str,
) -> None:
    waiting = another()
    with db.transaction():
        rows(db, f"select qgres.queue__create({first})")
        creating = background.submit(rows, waiting, f"select qgres.queue__create({second})")
        wait_until_blocked(another(), waiting)
    with refused("23505", text):
        creating.result(10)


def test_the_resource_logs_partitions_that_are_named_each(
    parted: Connection, database_url: str
) -> None:
    parts = [f"Orders#{part}" for part in range(4)]
    with pytest.raises(DatabaseError, match='"orders" already exists with 4 partitions') as error:
        PgqueResource(url=database_url, serial_queues=["orders"]).database_url()
    assert '"Orders#0" to "Orders#3"' in str(error.value)
    consumers = {f"qgres.{part}": ["c"] for part in parts}
    PgqueResource(url=database_url, serial_queues=parts, consumers=consumers).database_url()
    for key in KEYS:
        publish(parted, key, key)
    for log in consumers:
        tick(parted, log)
    assert sorted(text for log in consumers for text in drain(parted, log)) == sorted(KEYS)
