"""A table balance in PostgreSQL into which the results of batches go."""

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import PostgresSink, SparkBatch
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import connect, rows, value
from tests.support.spark.in_process import without_tasks

TABLE = "create table balance (account text primary key, amount numeric, note text default 'new')"
ADD: dict[str, Any] = {"key": ["account"], "mode": "add"}


class Work:
    """A queue with a batch, whose results go into the table balance."""

    def __init__(self, client: Client, spark: SparkSession) -> None:
        self.client, self.spark, self.url = client, spark, client.url
        publish(client, ["a", "b"])
        run(client.url, TABLE)

    def claim(self) -> SparkBatch:
        return SparkBatch(self.spark, claim(self.client), self.url)

    def amounts(self, amount: int = 1, account: str = "x") -> DataFrame:
        rows = pa.table({"account": [account], "amount": pa.array([amount], pa.int32())})
        return self.spark.createDataFrame(rows)

    def write(self, batch: SparkBatch, amount: int = 1, **options: Any) -> None:
        with without_tasks():
            PostgresSink("balance", **{**ADD, **options}).write(batch, self.amounts(amount))


def run(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


def balances(url: str, more: str = "") -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, f"select account, amount::float{more} from balance order by 1")


def somebody_waits(url: str) -> bool:
    """Whether a transaction of the database waits for another to end."""
    waiting = (
        "select count(*) > 0 from pg_locks l join pg_stat_activity a using (pid)"
        " where not l.granted and a.datname = current_database()"
    )
    with connect(url) as db:
        return bool(value(db, waiting))


def stages(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select relname from pg_class where relname ~ '^pgque_stage_'")
