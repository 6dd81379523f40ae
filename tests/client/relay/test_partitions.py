"""Replicas of partitioned tables that are captured from the WAL."""

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.postgres.replicate import replicate
from tests.client.relay.conftest import QUEUE, Source
from tests.support.queues.sql import rows

CONSUMER = "warehouse"


# What happens to a partitioned table and its first partition, {}_1.
CASES = (
    "create table {}_2 partition of {} for values from (10) to (20); insert into {} values (11)",
    "alter table {} detach partition {}_1; insert into {}_1 values (2);"
    " alter table {} attach partition {}_1 for values from (0) to (10); insert into {} values (3)",
    "truncate {}; alter table {}_1 set unlogged; insert into {} values (4);"
    " alter table {}_1 set logged; insert into {} values (5)",
    "alter table {}_1 set unlogged; insert into {} values (4); alter table {}_1 set logged",
    "insert into {} values (6); alter table {} detach partition {}_1; drop table {}_1",
    "truncate {}; insert into {} values (7)",
    "truncate {}_1; insert into {} values (7)",
)
TABLES = {f"p{number}": case for number, case in enumerate(CASES)}


def catch_up(source: Source) -> None:
    """Moves all changes, makes a tick, and applies all batches."""
    source.tick()
    with Client(source.url) as client:
        while batch := client.claim(QUEUE, CONSUMER, owner="a test"):
            names = [f"public.{name}" for name in TABLES]
            replicate(batch, names, PostgresReplicas(source.url, schema="copy"))
            batch.ack()


def test_a_replica_has_the_rows_whatever_happens_to_partitions(source: Source) -> None:
    source.db.execute("create schema copy")
    for name in TABLES:
        create = f"create table {name} (id int primary key) partition by range (id)"
        part = f"create table {name}_1 partition of {name} for values from (0) to (10)"
        source.db.execute(f"{create}; {part}".encode())
        source.capture(name)
    with Client(source.url) as client:
        client.register_consumer(QUEUE, CONSUMER)
    for name in TABLES:
        source.db.execute(f"insert into {name} values (1)".encode())
    catch_up(source)
    for name, case in TABLES.items():
        for statement in case.replace("{}", name).split(";"):
            source.db.execute(statement.encode())
    catch_up(source)
    wanted = "select id from {} order by id"
    for name, case in TABLES.items():
        copied = rows(source.db, wanted.format(f"copy.{name}"))
        assert copied == rows(source.db, wanted.format(name)), case
