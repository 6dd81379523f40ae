"""An asset over several databases, its sensor and its runs; also as a program that gets a signal.

python -m tests.support.dagster.sharded_project <urls by shard, as JSON> <kind> <folder> <url>
    <tags, as JSON> <signal> <point> <file>

Who starts it makes it the leader of a process group, so that its JVM gets the signal, too. The file
is made when the signal is sent.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import Any

import dagster as dg
import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    DeltaBatchIOManager,
    IcebergBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    build_pgque_sensor,
    pgque_asset,
)
from pgque_dagster.client import Batch, Client
from pgque_dagster.client.sharded_claim import ShardedClaim
from pgque_dagster.spark.sinks.table_output import TableOutput
from tests.dagster.support import SessionHolder
from tests.programs.publishing import signalling
from tests.support.queues.events import publish
from tests.support.spark.stored_tables import iceberg_catalog

LEASE = timedelta(seconds=3)
# In PostgreSQL, who stores the rows has created the table.
TABLE = "create table revenue (shard text, number bigint, ev_id bigint)"
POINTS = (
    "before the record of what failed",
    # The leases are renewed, and the state of the table is read.
    "before the commit",
    "after the commit",
    "before the first ack",
    "before the second ack",
)
STORED = POINTS[2:]

At = Callable[[str], None]


def payloads(batch: SparkBatch) -> DataFrame:
    """The numbers in the payloads. Those that are no numbers become dead letters."""
    # More tasks cost more than the events.
    return batch.payload("number bigint not null", keep=["ev_id"]).coalesce(1)


@dataclass
class ShardedProject:
    """A project with one asset over the queue orders of several databases.

    Args:
        urls: of the databases, by shard.
        kind: of the table: delta, iceberg or postgres.
        folder: where it is.
        spark: the session.
        target: the url of the database with the table, or with the catalog of Iceberg.
        compute: the function of the asset.
    """

    urls: dict[str, str]
    kind: str
    folder: Path
    spark: SparkSession
    target: str = ""
    compute: Callable[..., Any] = payloads
    instance: dg.DagsterInstance = field(default_factory=dg.DagsterInstance.ephemeral)

    @property
    def asset(self) -> dg.AssetsDefinition:
        consuming = pgque_asset(
            queue="orders",
            databases=list(self.urls),
            consumer="revenue",
            name="revenue",
            lease_ttl=LEASE,
        )
        return consuming(self.compute)

    @property
    def databases(self) -> dict[str, PgqueResource]:
        return {shard: PgqueResource(url=url) for shard, url in self.urls.items()}

    @property
    def resources(self) -> dict[str, Any]:
        return {
            **self.databases,
            "pyspark": SessionHolder(self.spark),
            "io_manager": self.io_manager,
        }

    @property
    def io_manager(self) -> Any:
        folder, target = str(self.folder), PgqueResource(url=self.target)
        match self.kind:
            case "delta":
                return DeltaBatchIOManager(base_dir=folder)
            case "iceberg":
                return IcebergBatchIOManager(pgque=target, warehouse=folder)
        return PostgresBatchIOManager(pgque=target)

    def send(self, **numbers: list[Any]) -> None:
        """Publishes numbers in a batch of each of the shards."""
        for shard, each in numbers.items():
            with Client(self.urls[shard]) as client:
                publish(client, [{"number": number} for number in each])

    def left(self) -> list[str]:
        """The shards that have a batch to deliver."""
        found = []
        for shard, url in self.urls.items():
            with Client(url) as client:
                if client.next_batch("orders", "revenue") is not None:
                    found.append(shard)
        return found

    def dead_letters(self, shard: str) -> int:
        with Client(self.urls[shard]) as client:
            return len(client.dead_letters("orders"))

    def consume(self, **options: Any) -> list[list[str]]:
        """Runs what the sensor requests until nothing is left; returns the shards of each run."""
        done = []
        while not isinstance(requests := self.evaluate(**options), str):
            for request in requests:
                done.append(shards_of(request))
                assert self.run(request.tags).success
        return done

    def evaluate(self, **options: Any) -> list[dg.RunRequest] | str:
        """The runs that the sensor asks for, or why it asks for none."""
        given = {"min_events": 0, "max_age": timedelta(0), "backoff": timedelta(0), **options}
        sensor = build_pgque_sensor([self.asset], **given)
        context = dg.build_sensor_context(instance=self.instance)
        result: Any = sensor(context, **self.databases)
        if isinstance(result, dg.SkipReason):
            return str(result.skip_message)
        return list(result.run_requests)

    def requests(self, **options: Any) -> list[dg.RunRequest]:
        found = self.evaluate(**options)
        assert not isinstance(found, str), found
        return found

    def run(self, tags: Mapping[str, str] | None = None) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [self.asset],
            resources=self.resources,
            instance=self.instance,
            tags=dict(tags or {}),
            raise_on_error=False,
        )

    def rows(self) -> list[tuple[str, int]]:
        """The shard and number of all rows, sorted."""
        if self.kind == "postgres":
            with psycopg.connect(self.target) as db:
                rows = db.execute("select shard, number from revenue").fetchall()
            return sorted((shard, number) for shard, number in rows)
        return sorted((row["shard"], row["number"]) for row in self.stored_rows())

    def stored_rows(self) -> list[dict[str, Any]]:
        """The rows in the lake, as the libraries of the formats read them."""
        if self.kind == "iceberg":
            table = iceberg_catalog(self.target).load_table("pgque.revenue")
            return table.scan().to_arrow().to_pylist()
        return DeltaTable(self.folder / "revenue").to_pyarrow_table().to_pylist()


def shards_of(request: dg.RunRequest) -> list[str]:
    """The shards whose batches a run is requested for."""
    keys = (key.partition("pgque/batch_id.") for key in request.tags)
    return sorted(shard for before, found, shard in keys if found and not before)


@contextmanager
def watched(at: At) -> Iterator[None]:
    """Tells the points of runs in this process, while the block runs."""
    acks = list(POINTS[3:])
    patch = pytest.MonkeyPatch()

    def telling(owner: type, name: str, first: str | None, last: str | None = None) -> None:
        method = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            if first:
                at(first)
            result = method(*arguments)
            if last:
                at(last)
            return result

        patch.setattr(owner, name, call)

    ack = Batch.ack

    def acking(batch: Batch) -> Any:
        if acks:
            at(acks.pop(0))
        return ack(batch)

    telling(ShardedClaim, "run_checks", POINTS[0])
    telling(TableOutput, "replace", POINTS[1], POINTS[2])
    patch.setattr(Batch, "ack", acking)
    try:
        yield
    finally:
        patch.undo()


def main() -> None:
    urls, kind, folder, target, tags, signal, point, once = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    sharded = ShardedProject(json.loads(urls), kind, Path(folder), session, target)
    at = signalling(os.getpid(), Signals[signal], point, Path(once))
    with watched(at):
        done = sharded.run(json.loads(tags))
    sys.exit(not done.success)


if __name__ == "__main__":
    main()
