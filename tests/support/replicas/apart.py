"""Three tables, of which one is set apart."""

import psycopg

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import copy_again
from tests.client.consumer.support import expire_leases
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    PostgresReplication,
    Replication,
)

TABLES = ["public.a", "public.b", "public.c"]
BAD, GOOD = "infinity", "2026-01-01"


def prepare(replication: Replication) -> None:
    """Three tables that are copied, and that a batch may add rows to."""
    for table in "abc":
        replication.sql(
            f"create table {table} (id int primary key, d date);"
            f"insert into {table} values (1, '{GOOD}')"
        )
    replication.capture(*TABLES)
    replication.catch_up()
    if isinstance(replication, PostgresReplication):
        for table in "abc":
            replication.there(f"alter table {table} add check (d < 'infinity')")


def insert(replication: Replication, number: int, tables: str = "abc") -> None:
    for table in tables:
        replication.sql(f"insert into {table} values ({number}, '{GOOD}')")


def spoil(replication: Replication, number: int, table: str = "b", value: str = BAD) -> None:
    replication.sql(f"insert into {table} values ({number}, '{value}')")


def mend(replication: Replication, table: str = "b") -> None:
    replication.sql(f"update {table} set d = '{GOOD}' where d = '{BAD}'")


def prepare_batch(replication: Replication, joins: bool) -> None:
    """A batch at which b is set apart, or joins the others again."""
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    if joins:
        replication.catch_up()
        insert(replication, 4)
        mend(replication)
        end_pauses(replication)
    replication.tick()


def repair(replication: Replication, table: str) -> None:
    with Client(replication.url) as client:
        copy_again(client, QUEUE, CONSUMER, f"public.{table}")


def end_pauses(replication: Replication) -> None:
    replication.sql("update pgque.replica_apart set retry_at = clock_timestamp()")


def noted(replication: Replication) -> list[tuple[str, int, int]]:
    with replication.connect() as db:
        return db.execute(
            "select table_name, tick_id, attempts from pgque.replica_apart order by 1"
        ).fetchall()


def needed(replication: Replication) -> int:
    """The first tick after which the queue's events are kept."""
    with replication.connect() as db:
        found = db.execute("select first_tick from pgque.needed_tick").fetchall()
        return int(found[0][0])


def end_leases(replication: Replication) -> None:
    with psycopg.connect(replication.url, autocommit=True) as db:
        expire_leases(db)


def rotate(replication: Replication) -> None:
    """Rotates as often as it takes to empty each event table that nobody needs."""
    replication.sql("select pgque.set_queue_config('changes', 'rotation_period', '1 microsecond')")
    for _ in range(4):
        replication.sql("select pgque.maint_rotate_tables_step1('changes')")
        replication.sql("select pgque.maint_rotate_tables_step2()")
