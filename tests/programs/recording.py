"""Records what this version writes when it stores a batch or a window and dies before the ack.

python -m tests.programs.recording <folder>

Started in a folder that has the pgque_dagster and sql of another version, with this repository in
PYTHONPATH, it records that version.

Each recording is a folder with the table, or the SQL of its database, and with `marks.json`: the
attempt, and the incarnations of the queue's databases. The files of Iceberg have absolute paths, so
`marks.json` has the properties and the rows of its table instead. `test_recorded.py` continues.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import pgque_dagster
from pgque_dagster import (
    DeltaBatchIOManager,
    IcebergBatchIOManager,
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    pgque_asset,
)
from pgque_dagster.client import Batch, Client
from pgque_dagster.spark import PostgresSink
from tests.conftest import new_server
from tests.dagster.support import SessionHolder
from tests.support.queues.sql import connect
from tests.support.servers.databases import empty_database
from tests.support.spark.stored_tables import iceberg_catalog

SHARDS = ("eu", "us")
# Those of the first batch and the first hour, and those of the second ones.
EVENTS = (('{"number": 1}', '{"number": 2}'), ('{"number": 3}',))
# A vector makes it a dead letter.
DEAD = "number = 2"
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")
TABLE = "create table public.revenue (number bigint, writer text"
_UNNEEDED = ("--", "\\", "SET ", "SELECT ")
OF_SHARDS = ("vector", "sharded-window")
CASES = {
    "delta": ("batch", "window", *OF_SHARDS),
    "iceberg": ("batch", "window", *OF_SHARDS),
    "parquet": ("batch", "window"),
    "postgres": ("batch", "vector"),
}


def fill(url: str, install: bytes) -> None:
    """Installs the queue orders with its events, and opens the first batch."""
    with connect(url) as db:
        db.execute(install)
        db.make_queue("orders", consumers=("revenue",), ticker_max_lag="0")
        for texts in (*EVENTS, ()):
            db.publish(*texts, queue="orders")
        db.next_batch("orders", "revenue")


def set_times(url: str) -> None:
    """Has the queue begin at a midnight, and tick at half past each hour."""
    with connect(url) as db:
        db.execute(
            "update pgque.tick_log set tick_time = case tick_id when 1 then '2026-01-01 00:00+00'"
            " else timestamptz '2026-01-01 00:30+00' + (tick_id - 2) * interval '1 hour' end"
        )


def store(case: str, urls: dict[str, str], io_manager: Any, spark: SparkSession) -> dict[str, Any]:
    """Runs an asset up to its ack; returns the identity of the attempt."""
    attempt: dict[str, Any] = {}
    is_window = case.endswith("window")
    given: dict[str, Any] = {"partitions_def": HOURS} if is_window else {"consumer": "revenue"}
    if case in OF_SHARDS:
        given["databases"] = list(urls)

    @pgque_asset(queue="orders", name="revenue", **given)
    def revenue(batch: SparkBatch) -> DataFrame:
        attempt.update(batch_id=batch.batch_id, epoch=batch.claim.lease.epoch)
        rows = batch.payload("number bigint", keep=["ev_id"])
        if case == "vector":
            batch.dead_letter(rows.where(DEAD), reason="recorded")
            rows = rows.where(f"not {DEAD}")
        return rows.drop("ev_id").withColumn("writer", f.lit("recorded"))

    def die(*_: Any) -> None:
        raise InterruptedError

    resources = {
        **{name: PgqueResource(url=url) for name, url in urls.items()},
        "pyspark": SessionHolder(spark),
        "io_manager": io_manager,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "ack", die)
        done = dg.materialize(
            [revenue],
            partition_key=HOURS.get_first_partition_key() if is_window else None,
            resources=resources,
            raise_on_error=False,
        )
    assert done.get_asset_materialization_events()
    assert done.success == is_window
    return attempt


def store_elsewhere(urls: dict[str, str], target: str, spark: SparkSession) -> dict[str, Any]:
    """Stores a batch in another database, where only a sink without a run stores one."""
    (url,) = urls.values()
    with Client(url) as client:
        claim = client.claim("orders", "revenue", owner="a recording")
        assert claim is not None
        batch = SparkBatch(spark, claim, url)
        rows = batch.payload("number bigint").withColumn("writer", f.lit("recorded"))
        PostgresSink("revenue", url=target).write(batch, rows)
        return {"batch_id": claim.batch_id, "epoch": claim.lease.epoch}


def marks_of(url: str) -> dict[str, Any]:
    """Returns the marks and rows of the table of Iceberg whose catalog is in a database."""
    table = iceberg_catalog(url).load_table("pgque.revenue")
    (snapshot,) = table.metadata.snapshots
    return {
        "properties": table.properties,
        "snapshot": snapshot.summary.additional_properties,
        "rows": table.scan().to_arrow().to_pylist(),
    }


def dump(server: Any, url: str, file: Path) -> None:
    """Writes the SQL of the tables, without comments, settings and commands of psql."""
    command = [server.binary("pg_dump"), "--inserts", "--no-owner", "--table=public.*", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept = [line for line in text.splitlines() if line and not line.startswith(_UNNEEDED)]
    file.write_text("\n".join(kept) + "\n")


def record(server: Any, kind: str, case: str, folder: Path, spark: SparkSession) -> None:
    """Stores into a table of a kind, and records it."""
    folder.mkdir(parents=True)
    install = Path(pgque_dagster.__file__).parents[1] / "sql" / "pgque.sql"
    with ExitStack() as stack:
        names = SHARDS if case in OF_SHARDS else ("pgque",)
        urls = {name: stack.enter_context(empty_database(server)) for name in names}
        marks: dict[str, Any] = {"incarnations": {}}
        for name, url in urls.items():
            fill(url, install.read_bytes())
            set_times(url)
            with connect(url) as db:
                marks["incarnations"][name] = str(db.value("select pgque.incarnation()"))
        url = stack.enter_context(empty_database(server))
        target = PgqueResource(url=url)
        match kind:
            case "delta":
                attempt = store(case, urls, DeltaBatchIOManager(base_dir=str(folder)), spark)
            case "parquet":
                attempt = store(case, urls, ParquetBatchIOManager(base_dir=str(folder)), spark)
            case "iceberg":
                manager = IcebergBatchIOManager(pgque=target, warehouse=str(folder))
                attempt = store(case, urls, manager, spark)
                marks |= marks_of(url)
                shutil.rmtree(folder / "pgque")
            case _:
                with connect(url) as db:
                    db.execute(f"{TABLE}{', shard text' * (case in OF_SHARDS)})".encode())
                if case in OF_SHARDS:
                    attempt = store(case, urls, PostgresBatchIOManager(pgque=target), spark)
                else:
                    attempt = store_elsewhere(urls, url, spark)
                dump(server, url, folder / "target.sql")
        marks |= attempt
        for unneeded in (*folder.rglob("*.crc"), *folder.rglob("_SUCCESS")):
            unneeded.unlink()
        (folder / "marks.json").write_text(json.dumps(marks, indent=1) + "\n")


def main() -> None:
    (folder,) = map(Path, sys.argv[1:])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    with new_server() as server:
        for kind, cases in CASES.items():
            for case in cases:
                record(server, kind, case, folder / f"{kind}-{case}", builder.getOrCreate())


if __name__ == "__main__":
    main()
