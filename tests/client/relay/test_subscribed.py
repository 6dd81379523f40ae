"""Tables of another server, in which nothing is installed: a subscription brings their rows."""

import random
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgque_dagster.client import Client
from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.postgres.replicate import replicate
from pgque_dagster.client.replicas.source import expanded
from tests.conftest import new_server
from tests.support.queues.sql import connect, refused
from tests.support.runner.waiting import wait_until
from tests.support.servers.postgres import Postgres

QUEUE, CONSUMER = "changes", "warehouse"
_COLUMNS = "id int primary key, region int, note text, long text"
_FIRST = """
alter table orders alter long set storage external;
insert into orders select n, n % 2, 'first', repeat(md5(n::text), 100)
from generate_series(1, 300) n;
create publication orders for table orders;
"""
_STATEMENTS = (
    "insert into orders select {id} + 1000 * n, 0, 'more', repeat('y', 3000)"
    " from generate_series(1, 5) n on conflict do nothing",
    "update orders set note = {id}::text where id between {id} and {id} + 20",
    "update orders set long = repeat('x', {id} * 20) where id = {id}",
    "update orders set id = id + 100000 where id = {id}"
    " and not exists (select from orders where id = {id} + 100000)",
    "delete from orders where id between {id} and {id} + 3",
)


@pytest.fixture(scope="module")
def vendor() -> Iterator[Postgres]:
    with new_server() as server:
        yield server


class Shop:
    """A table at a vendor, and the database that subscribes to it and has the queue.

    Args:
        vendor: the vendor's server.
        url: the database with the queue.
    """

    def __init__(self, vendor: Postgres, url: str) -> None:
        self.vendor, self.url = vendor.url, url
        self._sessions = {each: connect(each) for each in (vendor.url, url)}
        self.at(vendor.url, f"drop table if exists orders; create table orders ({_COLUMNS})")
        self.at(vendor.url, "drop publication if exists orders;" + _FIRST)
        name = conninfo_to_dict(url)["dbname"]
        create = f"create subscription {name} connection '{vendor.url}' publication orders"
        self.at(url, f"create table orders ({_COLUMNS})", create)

    def at(self, url: str, *statements: str) -> list[tuple[object, ...]]:
        for statement in statements:
            found = self._sessions[url].execute(statement.encode())
        return found.fetchall() if found.description else []

    def drop(self) -> None:
        self.at(self.url, f"drop subscription {conninfo_to_dict(self.url)['dbname']}")
        for session in self._sessions.values():
            session.close()

    def rows(self, url: str, table: str = "orders") -> list[tuple[object, ...]]:
        return self.at(url, f"select * from {table} order by id")

    def settle(self) -> None:
        """Waits until the subscription has all that the vendor has."""
        wait_until(lambda: self.rows(self.url) == self.rows(self.vendor))

    def catch_up(self) -> None:
        """Moves all changes, makes a tick, and applies all batches."""
        with Relay.of(self.url, QUEUE) as relay:
            relay.tick()
        with Client(self.url) as client:
            while batch := client.claim(QUEUE, CONSUMER, owner="a test"):
                target = PostgresReplicas(self.url, schema="copy")
                replicate(batch, ["public.orders"], target)
                batch.ack()


@pytest.fixture
def shop(vendor: Postgres, database_url: str) -> Iterator[Shop]:
    shop = Shop(vendor, database_url)
    shop.at(database_url, f"select pgque.create_queue('{QUEUE}')", "create schema copy")
    yield shop
    shop.drop()


def test_a_replica_follows_a_table_of_a_server_in_which_nothing_is_installed(shop: Shop) -> None:
    chance = random.Random(1)
    begin_relay(shop.url, QUEUE)
    with Client(shop.url) as client:
        (spec,) = expanded(client, ["public.*"]).specs
        assert capture_new(client, QUEUE, [spec]) == {"public.orders": True}
        client.register_consumer(QUEUE, CONSUMER)
    shop.catch_up()
    for number in range(3):
        for _ in range(20):
            statement = chance.choice(_STATEMENTS).format(id=chance.randrange(300))
            shop.at(shop.vendor, statement)
        if number == 1:
            # The worker begins again.
            shop.at(shop.url, "select pg_terminate_backend(pid) from pg_stat_subscription")
        shop.catch_up()
    shop.settle()
    shop.catch_up()

    assert shop.rows(shop.url, "copy.orders") == shop.rows(shop.vendor)
    shop.at(shop.vendor, "truncate orders; insert into orders values (1, 1, 'last', 'x')")
    shop.settle()
    shop.catch_up()
    assert shop.rows(shop.url, "copy.orders") == [(1, 1, "last", "x")]
    ((copies,),) = shop.at(shop.url, "select count(*) from pgque.event where ev_type = 'copy'")
    assert copies == 1  # the first


def test_health_says_that_a_subscription_brings_no_rows(shop: Shop) -> None:
    name = conninfo_to_dict(shop.url)["dbname"]
    begin_relay(shop.url, QUEUE)
    shop.at(shop.url, f"select pgque.capture('orders', '{QUEUE}')")

    def found() -> list[tuple[object, ...]]:
        query = "select status, detail from pgque.queue_health() where check_name ="
        return shop.at(shop.url, f"{query} 'captured_table:public.orders'")

    shop.settle()
    wait_until(lambda: not found())
    shop.at(shop.url, f"alter subscription {name} disable")
    assert found() == [
        ("critical", f"gets no new rows from subscription {name}, because it is disabled")
    ]
    shop.at(shop.url, f"alter subscription {name} enable")
    wait_until(lambda: not found())
    shop.at(
        shop.vendor,
        "alter table orders add column more int default 1",
        "update orders set more = 2 where id = 1",
    )
    wait_until(lambda: "not running: see the server's log" in str(found()))
    shop.at(shop.url, "alter table orders add column more int default 1")
    shop.settle()
    wait_until(lambda: not found())


def test_triggers_do_not_capture_a_table_that_a_subscription_fills(shop: Shop) -> None:
    with refused("PQ005", "capture it from the WAL, or in the database that publishes it"):
        shop.at(shop.url, f"select pgque.capture('orders', '{QUEUE}')")
