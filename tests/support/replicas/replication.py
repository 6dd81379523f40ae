"""Tables that are captured and replicated, compared by what PostgreSQL prints."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psycopg
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import snapshot
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.client.batch import Batch
from pgque_dagster.client.replicas.capture import capture_new, copy_again
from pgque_dagster.client.replicas.deletes import (
    FROM_TICK,
    HARD,
    HISTORY,
    TO_TICK,
    Deletes,
    end_mark,
)
from pgque_dagster.client.replicas.key_parts import KeyPart
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.client.replicas.postgres import replicate as postgres
from pgque_dagster.client.replicas.postgres import verify as postgres_verify
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.source import SourceTable
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.client.replicas.verify import Verification, last_acked_tick
from pgque_dagster.spark import DatabaseAddress, SparkBatch
from pgque_dagster.spark.replicas.formats import replica_of
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas, LakeReplicas
from pgque_dagster.spark.replicas.replicate import replicate
from pgque_dagster.spark.replicas.verify import verify
from pgque_dagster.spark.sinks.iceberg.commit import RECORD
from pgque_dagster.spark.sinks.members import INCARNATION
from pgque_dagster.spark.sinks.tables import TableSink
from tests.client.consumer.support import expire_leases
from tests.support.replicas.sessions import execute, kept_client
from tests.support.spark import delta_tables, iceberg_tables
from tests.support.spark.lakes import iceberg_catalog

QUEUE, CONSUMER = "changes", "lake"
T = "public.t"

Row = dict[str, Any]


class Replication:
    """A consumer that replicates tables."""

    target: LakeReplicas | PostgresReplicas
    consumer = CONSUMER

    def __init__(self, url: str, spark: SparkSession | None) -> None:
        self.url, self.spark = url, spark
        self.tables: list[str | TableSpec] = []
        self.copied: list[str] = []

    def keep(self, deletes: Deletes) -> None:
        """Has the replicas treat deleted rows so."""
        self.target = replace(self.target, deletes=deletes)

    def live(self, table: str) -> list[Row]:
        """The rows of a replica that its source has, by the filter that the docs have."""
        mark = end_mark(self.target.deletes)
        return [row for row in self.replica(table) if mark is None or row[mark] is None]

    def at(self, table: str, tick: int) -> list[Row]:
        """The rows that a replica with history had at a tick, by the filter that the docs have."""
        assert self.target.deletes == HISTORY
        return [
            row
            for row in self.replica(table)
            if row[FROM_TICK] <= tick and (row[TO_TICK] is None or row[TO_TICK] > tick)
        ]

    def last_tick(self) -> int:
        """The tick up to which batches are acked."""
        with kept_client(self.url) as client:
            return last_acked_tick(client, QUEUE, self.consumer)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    def sql(self, script: str) -> None:
        execute(self.url, script)

    def capture(self, *tables: str | TableSpec) -> None:
        self.tables = [*self.tables, *tables]
        with kept_client(self.url) as client:
            capture_new(client, QUEUE, tables)

    def tick(self) -> None:
        self.sql("select pgque.force_next_tick('changes'); select pgque.ticker('changes')")

    def claim(self, client: Client) -> SparkBatch | None:
        batch = client.claim(QUEUE, self.consumer, owner="a test")
        return None if batch is None else self.batch_of(batch)

    def batch_of(self, claim: Batch) -> SparkBatch:
        return SparkBatch(self.spark, claim, self.url)

    def run(self, *, ack: bool = True) -> list[Replicated | Apart]:
        """Applies the next batch."""
        with kept_client(self.url) as client:
            batch = self.claim(client)
            assert batch is not None
            done = self.replicate(batch, self.tables)
            batch.claim.ack() if ack else batch.claim.release()
            return done

    def catch_up(self) -> list[Replicated | Apart]:
        """Ticks, and applies all batches. Returns what the last one did."""
        self.tick()
        done: list[Replicated | Apart] = []
        with kept_client(self.url) as client:
            while batch := self.claim(client):
                done = self.replicate(batch, self.tables)
                batch.claim.ack()
        return done

    def begin(self, script: str, *tables: str | TableSpec) -> None:
        """Runs a script, and copies tables for the first time."""
        self.sql(script)
        self.capture(*(tables or [T]))
        self.catch_up()

    def follow(self, script: str) -> list[Replicated | Apart]:
        """Runs a script, and applies all batches. Returns what the last one did."""
        self.sql(script)
        return self.catch_up()

    def follow_and_check(self, script: str = "") -> list[Replicated | Apart]:
        done = self.follow(script)
        self.check()
        return done

    def why_apart(self, script: str = "") -> str:
        """Runs a script, and applies all batches. Returns why the last table stands apart."""
        *_, last = self.follow(script)
        assert isinstance(last, Apart)
        return last.reason

    def repair(self, table: str = T) -> None:
        """Asks for another copy."""
        with kept_client(self.url) as client:
            copy_again(client, QUEUE, self.consumer, table)

    def end_pauses(self) -> None:
        """Has tables that stand apart tried with the next batch."""
        self.sql("update pgque.replica_apart set retry_at = clock_timestamp()")

    def end_leases(self) -> None:
        with self.connect() as db:
            expire_leases(db)

    def source(self, table: str) -> list[Row]:
        return rows_of(self.url, table)

    def check(self, *tables: str) -> None:
        for table in tables or [TableSpec.of(each).source for each in self.tables]:
            rows, live = self.source(table), self.live(table)
            assert (live if self.target.deletes == HARD else with_columns_of(live, rows)) == rows


class LakeReplication(Replication):
    """Replicas in the lake."""

    target: LakeReplicas

    def __init__(self, url: str, spark: SparkSession, folder: Path) -> None:
        super().__init__(url, spark)
        self.folder = folder

    def replicate(
        self, batch: SparkBatch, tables: Sequence[str | TableSpec]
    ) -> list[Replicated | Apart]:
        return list(replicate(batch, tables, self.target, log=self.copied.append))

    def verify(
        self, table: str | TableSpec = "public.t", part: KeyPart | None = None
    ) -> Verification:
        with kept_client(self.url) as client:
            place = self.target, DatabaseAddress(self.url)
            return verify(self.spark, client, QUEUE, self.consumer, table, *place, part)

    def sink(self, table: str) -> TableSink:
        with kept_client(self.url) as client:
            source = SourceTable.find(client, table)
            return replica_of(self.target, source, QUEUE, self.consumer, client).sink

    def replica(self, table: str) -> list[Row]:
        rows = self.arrow(table).to_pylist()
        return sorted((dict(sorted(row.items())) for row in rows), key=repr)


class DeltaReplication(LakeReplication):
    """Replicas in Delta tables.

    `write_foreign` makes a table of somebody else, `commits` are the records of commits, the newest
    first, and `repeat_rows` adds all rows once more, by a commit that says that it is ours, or not.
    """

    def __init__(self, url: str, spark: SparkSession, folder: Path) -> None:
        super().__init__(url, spark, folder)
        self.target = DeltaReplicas(str(folder))

    def table(self, table: str) -> DeltaTable:
        return DeltaTable(str(self.folder / table.replace(".", "/")))

    def arrow(self, table: str) -> pa.Table:
        return delta_tables.same_rows(self.table(table))

    def rename(self, table: str, name: str) -> None:
        (self.folder / "public" / table).rename(self.folder / "public" / name)

    def write_foreign(self, name: str) -> None:
        write_deltalake(str(self.folder / "public" / name), pa.table({"id": [1]}))

    def commits(self, table: str) -> list[Row]:
        return [commit.get("pgque") or {} for commit in self.table(table).history()]

    def files(self, table: str) -> set[str]:
        return set(self.table(table).file_uris())

    def repeat_rows(self, table: str, *, as_ours: bool = True) -> None:
        record = {"pgque": next(each for each in self.commits(table) if each)} if as_ours else {}
        write_deltalake(
            self.table(table),
            self.arrow(table),
            mode="append",
            commit_properties=CommitProperties(custom_metadata=record),
        )


class IcebergReplication(LakeReplication):
    """Replicas in Iceberg tables."""

    def __init__(self, url: str, spark: SparkSession, folder: Path) -> None:
        super().__init__(url, spark, folder)
        self.target = IcebergReplicas(str(folder))

    def table(self, table: str) -> Table:
        return iceberg_catalog(self.url).load_table(table)

    def arrow(self, table: str) -> pa.Table:
        return iceberg_tables.same_rows(self.table(table))

    def rename(self, table: str, name: str) -> None:
        iceberg_catalog(self.url).rename_table(f"public.{table}", f"public.{name}")

    def write_foreign(self, name: str) -> None:
        catalog = iceberg_catalog(self.url)
        catalog.create_namespace_if_not_exists("public")
        location = f"file://{self.folder}/foreign"
        catalog.create_table(f"public.{name}", pa.schema({"id": pa.int64()}), location)

    def commits(self, table: str) -> list[Row]:
        summaries = (each.summary for each in reversed(self.table(table).snapshots()))
        found = [each.additional_properties.get(RECORD) if each else None for each in summaries]
        return [json.loads(record) if record else {} for record in found]

    def files(self, table: str) -> set[str]:
        return {task.file.file_path for task in self.table(table).scan().plan_files()}

    def repeat_rows(self, table: str, *, as_ours: bool = True) -> None:
        last = json.dumps(next(each for each in self.commits(table) if each))
        record = {RECORD: last} if as_ours else {}
        self.table(table).append(self.arrow(table), snapshot_properties=record)

    def compact(self, table: str) -> None:
        """Has another engine rewrite the files, in a snapshot that pyiceberg cannot make itself."""
        found, summaries = self.table(table), snapshot.update_snapshot_summaries

        def replacing(*arguments: Any, **options: Any) -> Summary:
            done = summaries(*arguments, **options)
            return Summary(Operation.REPLACE, **done.additional_properties)

        with (
            patch.object(snapshot, "update_snapshot_summaries", replacing),
            found.transaction() as change,
            change.update_snapshot().overwrite() as overwrite,
        ):
            for task in found.scan().plan_files():
                overwrite.delete_data_file(task.file)
                overwrite.append_data_file(task.file)


class PostgresReplication(Replication):
    """Replicas in PostgreSQL, which need no Spark."""

    def __init__(self, url: str, spark: SparkSession | None, target_url: str) -> None:
        super().__init__(url, spark)
        self.target = PostgresReplicas(target_url)

    def replicate(
        self, batch: SparkBatch, tables: Sequence[str | TableSpec]
    ) -> list[Replicated | Apart]:
        return postgres.replicate(batch.claim, tables, self.target, self.copied.append)

    def batch_of(self, claim: Batch) -> Any:
        return SimpleNamespace(claim=claim)

    def verify(
        self, table: str | TableSpec = "public.t", part: KeyPart | None = None
    ) -> Verification:
        with kept_client(self.url) as client:
            return postgres_verify.verify(client, QUEUE, self.consumer, table, self.target, part)

    def there(self, script: str) -> list[tuple[Any, ...]]:
        """Runs a script in the target. Returns the rows of its last statement."""
        cursor = execute(self.target.url or self.url, script)
        return cursor.fetchall() if cursor.description else []

    def replica(self, table: str) -> list[Row]:
        schema, name = table.split(".")
        return rows_of(self.target.url or self.url, f'{self.target.schema or schema}."{name}"')


def with_columns_of(rows: list[Row], others: list[Row]) -> list[Row]:
    """Rows with only those columns that other rows have, if there are any."""
    names = others[0].keys() if others else set().union(*rows)
    return sorted(({name: row[name] for name in names} for row in rows), key=repr)


def for_table(name: str, script: str) -> str:
    """A script about the table t, for another table."""
    return re.sub(r"\bt\b", name, re.sub(r"\bt_", f"{name.split('.')[-1]}_", script))


def rows_of(url: str, table: str) -> list[Row]:
    cursor = execute(url, f"select * from {table}")
    names = [column.name for column in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    # By name, because a replica that was altered may have its columns in another order.
    return sorted(({name: row[name] for name in sorted(names)} for row in rows), key=repr)


def adopt(replication: Replication, refusal: str) -> None:
    """Says that the replicas may go on with the database as it is, as the refusal tells."""
    if isinstance(replication, PostgresReplication):
        start = refusal.index("update ")
        replication.there(refusal[start : refusal.index(";", start)])
        return
    with replication.connect() as db:
        ((incarnation,),) = db.execute("select pgque.incarnation()::text").fetchall()
    properties = {INCARNATION: incarnation}
    for name in [TableSpec.of(each).source for each in replication.tables]:
        if isinstance(replication, IcebergReplication):
            with replication.table(name).transaction() as change:
                change.set_properties(properties)
        elif isinstance(replication, DeltaReplication):
            replication.table(name).alter.set_table_properties(
                properties, raise_if_not_exists=False
            )
