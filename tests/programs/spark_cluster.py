"""A Spark driver in a process of its own, for clusters.

    python -m tests.programs.spark_cluster MASTER CONF STORY URL FOLDER

CONF is a JSON object of Spark's settings, STORY a function of this module, whose result is printed
as JSON. What executors run is defined here, so that it travels with the tasks: they need not have
the tests.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pgque_dagster.client import Client
from pgque_dagster.client.errors import PgqueError
from pgque_dagster.spark import (
    DeltaSink,
    IcebergSink,
    ParquetSink,
    PostgresSink,
    SparkBatch,
    clear_executor_errors,
    parse_payloads,
    register,
    ship,
)
from pgque_dagster.spark import batch as batch_module

PATIENCE_SECONDS = 900
SCHEMA = "account string not null, amount bigint not null"


def consume(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Does with a batch, and with a stream, whatever can be done with one."""
    with _claimed(spark, url) as batch:
        events = batch.events(["ev_id"])
        read, executors = _ids(events), _executors(events)
        orders = batch.payload(SCHEMA, keep=["ev_id"])
        totals = orders.groupBy("account").sum("amount").toDF("account", "amount")
        PostgresSink("balance", key=["account"], mode="add").write(batch, totals)
        ParquetSink(folder / "table").write(batch, totals)
        _publish(orders.selectExpr("string(amount) as data"), url)
        batch.nack(events.where("ev_id % 1000 = 0"))
    stored = ParquetSink(folder / "table").read(spark).collect()
    return {
        "ids": read,
        "executors": executors,
        "stored": {row.account: row.amount for row in stored},
        "streamed": _streamed(spark, url, folder),
    }


def lose_executors(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Reads, writes and streams, and each time an executor is killed in the middle."""
    with _claimed(spark, url) as batch:
        events = batch.events(["ev_id"])
        read = _ids(_disturbed(events, folder / "reading", kill_executor))
        rows = _disturbed(events, folder / "writing", kill_executor)
        _publish(rows.selectExpr("string(ev_id) as data"), url)
    streamed = _streamed(spark, url, folder, kill_at=folder / "streaming")
    return {"ids": read, "streamed": streamed}


def fill_sinks(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Keeps a batch in each sink and in a queue, and each time an executor is killed midway.

    Where Spark speculates, a task hangs instead, which Spark starts once more on another host.
    """
    disturb = hang if spark.conf.get("spark.speculation", "false") == "true" else kill_executor
    places = json.loads((folder / "places.json").read_text())
    directory = ParquetSink(folder / "table")
    tables: dict[str, Any] = {
        "files": directory,
        "delta": DeltaSink(folder / "delta"),
        "objects": DeltaSink(places["s3"], storage_options=places["s3_options"]),
        "iceberg": IcebergSink("a.table", warehouse=folder / "iceberg"),
    }
    with _claimed(spark, url) as batch:
        ids = batch.events(["ev_id"]).repartition(2)

        def disturbed(name: str) -> DataFrame:
            return _disturbed(ids, folder / f"disturbed-{name}", disturb)

        PostgresSink("taken").write(batch, disturbed("here"))
        PostgresSink("taken", url=places["elsewhere"]).write(batch, disturbed("elsewhere"))
        for name, table in tables.items():
            table.write(batch, disturbed(name))
        _publish(disturbed("queue").selectExpr("string(ev_id) as data"), url)
    return {"files": _ids(directory.read(spark))}


def count(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Reads a batch; when it cannot, says why, and reads it once the package is shipped."""
    told = None
    with _claimed(spark, url) as batch:
        try:
            with clear_executor_errors():
                events = batch.events(["ev_id"]).count()
        except PgqueError as error:
            told = f"{type(error).__name__}: {error}"
            ship(spark)
            events = batch.events(["ev_id"]).count()
    return {"told": told, "events": events}


@contextmanager
def _claimed(spark: SparkSession, url: str) -> Iterator[SparkBatch]:
    """The next batch, acked at the end of the block."""
    with Client(url) as client:
        claimed = client.claim("orders", "revenue", owner="a driver", ttl=timedelta(seconds=3))
        assert claimed is not None
        with claimed.keep_alive():
            yield SparkBatch(spark, claimed, url)
            claimed.ack()


def _publish(rows: DataFrame, url: str) -> None:
    register(rows.sparkSession)
    rows.write.format("pgque").options(url=url, queue="published").mode("append").save()


def _streamed(
    spark: SparkSession, url: str, folder: Path, kill_at: Path | None = None
) -> list[int]:
    register(spark)
    options = {"url": url, "queue": "orders", "consumer": "stream"}
    events = spark.readStream.format("pgque").options(**options).load()
    events = parse_payloads(events, SCHEMA, keep=["ev_id"], on_malformed="keep").select("ev_id")
    if kill_at:
        events = _disturbed(events, kill_at, kill_executor)
    store_stream(events, folder)
    return _ids(spark.read.parquet(str(folder / "streamed")))


def store_stream(events: DataFrame, folder: Path) -> StreamingQuery:
    """Runs a query into Parquet until it has caught up."""
    query = (
        events.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "streamed"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
    return query


def _ids(events: DataFrame) -> list[int]:
    return sorted(events.select("ev_id").toArrow()["ev_id"].to_pylist())


def _executors(events: DataFrame) -> int:
    """How many processes of Spark read it."""

    def pids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"pid": [_executor_pid()]})

    return len({row.pid for row in events.mapInArrow(pids, "pid bigint").collect()})


def _disturbed(events: DataFrame, once: Path, disturb: Callable[[], None]) -> DataFrame:
    """The same ids; whoever first has passed some on is disturbed, and leaves a file."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            disturb()

    return events.mapInArrow(through, "ev_id bigint")


def kill_executor() -> None:
    os.kill(_executor_pid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def _executor_pid() -> int:
    """A task's Python is a child of a daemon, which is a child of the executor."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.split("\nPPid:")[1].split()[0])


def open_session(master: str, conf: dict[str, str]) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    builder = SparkSession.builder.master(master)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        # Not before both executors of a cluster are there.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        # Many record batches, so that there is a middle.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    return builder.config(map={**defaults, **conf}).getOrCreate()


def main(master: str, conf: str, story: str, url: str, folder: str) -> None:
    spark = open_session(master, json.loads(conf))
    batch_module.DRIVER_SIDE_EVENTS = -1
    print(json.dumps(globals()[story](spark, url, Path(folder))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
