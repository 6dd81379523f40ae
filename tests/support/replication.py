"""Tables that are captured and replicated into Delta, compared by what PostgreSQL prints."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.client.source_tables import capture_new
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.replicas.replica import Replicated, replicate
from pgque_dagster.spark.replicas.verify import Verification, verify

QUEUE, CONSUMER = "changes", "lake"


class Replication:
    """A consumer that replicates tables."""

    def __init__(self, url: str, spark: SparkSession, folder: Path) -> None:
        self.url, self.spark, self.folder = url, spark, folder
        self.tables: list[str] = []
        self.copied: list[str] = []

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def sql(self, script: str) -> None:
        with self.connect() as db:
            db.execute(script.encode())

    def capture(self, *tables: str) -> None:
        self.tables = [*self.tables, *tables]
        with Client(self.url) as client:
            capture_new(client, QUEUE, tables)

    def tick(self) -> None:
        self.sql("select pgque.force_next_tick('changes'); select pgque.ticker('changes')")

    def claim(self, client: Client) -> SparkBatch | None:
        batch = client.claim(QUEUE, CONSUMER, owner="a test")
        return None if batch is None else SparkBatch(self.spark, batch, self.url)

    def run(self, *, ack: bool = True) -> list[Replicated]:
        """Applies the next batch."""
        with Client(self.url) as client:
            batch = self.claim(client)
            assert batch is not None
            done = list(replicate(batch, self.tables, self.folder, log=self.copied.append))
            batch.claim.ack() if ack else batch.claim.release()
            return done

    def catch_up(self) -> None:
        """Ticks, and applies all batches."""
        self.tick()
        while True:
            with Client(self.url) as client:
                batch = self.claim(client)
                if batch is None:
                    return
                list(replicate(batch, self.tables, self.folder, log=self.copied.append))
                batch.claim.ack()

    def verify(self, table: str = "public.t") -> Verification:
        with Client(self.url) as client:
            return verify(self.spark, client, self.url, QUEUE, CONSUMER, table, self.folder)

    def location(self, table: str) -> str:
        return str(self.folder / table.replace(".", "/"))

    def replica(self, table: str) -> list[dict[str, Any]]:
        rows = DeltaTable(self.location(table)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=repr)

    def source(self, table: str, columns: Sequence[str] = ("*",)) -> list[dict[str, Any]]:
        with self.connect() as db:
            cursor = db.execute(f"select {', '.join(columns)} from {table}".encode())
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return sorted(rows, key=repr)

    def check(self, *tables: str) -> None:
        for table in tables or self.tables:
            assert self.replica(table) == self.source(table)
