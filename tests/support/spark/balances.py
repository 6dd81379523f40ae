"""A table balance in PostgreSQL into which the results of batches go."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import PostgresSink, SparkBatch
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import connect, rows

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
        return self.spark.createDataFrame([(account, amount)], "account string, amount int")

    def write(self, batch: SparkBatch, amount: int = 1, **options: Any) -> None:
        PostgresSink("balance", **{**ADD, **options}).write(batch, self.amounts(amount))


def run(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


def balances(url: str, more: str = "") -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, f"select account, amount::float{more} from balance order by 1")


def stages(url: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        return rows(db, "select relname from pg_class where relname ~ '^pgque_stage_'")
