"""Replicas of partitioned tables that are captured from the WAL."""

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.postgres.replicate import replicate
from tests.client.relay.conftest import QUEUE, Source
from tests.support.queues.sql import rows

CONSUMER = "warehouse"


def catch_up(source: Source) -> None:
    """Moves all changes, makes a tick, and applies all batches."""
    source.tick()
    with Client(source.url) as client:
        while batch := client.claim(QUEUE, CONSUMER, owner="a test"):
            replicate(batch, ["public.p"], PostgresReplicas(source.url, schema="copy"))
            batch.ack()


@pytest.mark.parametrize(
    "statements",
    [
        "create table p2 partition of p for values from (10) to (20); insert into p values (11)",
        "alter table p detach partition p1; insert into p1 values (2);"
        " alter table p attach partition p1 for values from (0) to (10); insert into p values (3)",
        "truncate p; alter table p1 set unlogged; insert into p values (4);"
        " alter table p1 set logged; insert into p values (5)",
        "alter table p1 set unlogged; insert into p values (4); alter table p1 set logged",
        "insert into p values (6); alter table p detach partition p1; drop table p1",
        "truncate p; insert into p values (7)",
        "truncate p1; insert into p values (7)",
    ],
)
def test_a_replica_has_the_rows_whatever_happens_to_partitions(
    source: Source, statements: str
) -> None:
    source.db.execute(
        "create schema copy; create table p (id int primary key) partition by range (id)"
    )
    source.db.execute("create table p1 partition of p for values from (0) to (10)")
    source.capture("p")
    with Client(source.url) as client:
        client.register_consumer(QUEUE, CONSUMER)
    source.db.execute("insert into p values (1)")
    catch_up(source)
    for statement in statements.split(";"):
        source.db.execute(statement.encode())
    catch_up(source)
    wanted = "select id from {} order by id"
    assert rows(source.db, wanted.format("copy.p")) == rows(source.db, wanted.format("p"))
