"""A Spark driver that replicates tables into a bucket on a cluster, and is disturbed meanwhile.

    python -m tests.programs.cluster_replicas MASTER CONF STORY URL FOLDER

CONF is a JSON object of Spark's settings, STORY one of the replicas and of steps. Each step applies
a batch while what it names happens, and then compares tables and replicas. All but `copy` and
`again` change the tables before.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client
from pgque_dagster.client.replicas.deletes import FROM_TICK, HISTORY
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark import batch as batch_module
from pgque_dagster.spark.replicas import events, iceberg, rows
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas
from pgque_dagster.spark.replicas.replicate import replicate
from pgque_dagster.spark.sinks.delta import replacing
from pgque_dagster.spark.sinks.files import positions
from tests.programs.spark_cluster import hang, kill_executor, open_session
from tests.support.queues.sql import value
from tests.support.replicas.replication import CONSUMER, QUEUE, LakeReplication, with_columns_of
from tests.support.runner.waiting import wait_until
from tests.support.servers.s3 import S3
from tests.support.spark.delta_tables import read_delta
from tests.support.spark.stored_tables import iceberg_catalog

T, LOG = "public.t", "public.log"
# `made` counts the versions of rows that t had.
TABLES = """
create table t (n int primary key, v int) with (fillfactor = 50);
insert into t select n, 0 from generate_series(1, 7232) n;
create table log (n int); insert into log values (0);
create table made (versions int); insert into made select count(*) from t
"""
CHANGES = """
insert into log select max(n) + 1 from log;
delete from t where n % 100 = (select max(n) from log);
with new as (update t set v = v + 1 where n % 100 > 90 returning 1)
insert into made select count(*) from new;
insert into t select max(n) + 1, 0 from t; insert into made values (1)
"""
_HAPPENS = {"killed": kill_executor, "hanging": hang}
_WHEN = {"writing": "write_rows", "searching": "_matches"}
_INNER = {name: getattr(positions, name) for name in _WHEN.values()}
_COMMITS = (replacing, "commit"), (iceberg, "commit_snapshot")


class Lake(LakeReplication):
    """Replicas in a bucket."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, given: dict[str, Any]) -> None:
        super().__init__(url, spark, folder)
        self.s3 = S3(given["endpoint"])
        make: Any = DeltaReplicas if given["kind"] == "delta" else IcebergReplicas
        options = {"storage_options": self.s3.options, "deletes": given["deletes"]}
        self.target = make(self.s3.url("lake"), **options)
        self.tables = [T] if given["deletes"] == HISTORY else [TableSpec(LOG, mode="append"), T]

    def arrow(self, table: str) -> pa.Table:
        if isinstance(self.target, DeltaReplicas):
            options = {**self.s3.options, "aws_allow_http": "true"}
            place = self.s3.url(f"lake/{table.replace('.', '/')}")
            return read_delta(DeltaTable(place, storage_options=options))
        catalog = iceberg_catalog(self.url, **self.s3.iceberg_properties)
        return catalog.load_table(table).scan().to_arrow()

    def apply(self) -> None:
        """Applies all batches; the first one as soon as no other driver has it."""
        with Client(self.url) as client:
            claims: list[Batch] = []

            def claim() -> list[Batch]:
                ttl = timedelta(seconds=3)
                found = client.claim(QUEUE, CONSUMER, owner="a driver", ttl=ttl)
                claims.extend([found] if found else [])
                return claims

            wait_until(claim)
            while claims or claim():
                claimed = claims.pop()
                with claimed.keep_alive():
                    batch = SparkBatch(self.spark, claimed, self.url)
                    list(replicate(batch, self.tables, self.target, self.copied.append))
                    claimed.ack()

    def check(self, *tables: str) -> None:
        """Compares each table with what a reader finds that shares no code with us."""
        for table in tables or [TableSpec.of(each).source for each in self.tables]:
            source = self.source(table)
            assert with_columns_of(self.live(table), source) == source
        if self.target.deletes == HISTORY:
            versions = [(row["n"], row[FROM_TICK]) for row in self.replica(T)]
            with self.connect() as db:
                made = value(db, "select sum(versions) from made")
            assert len(set(versions)) == len(versions) == made

    def files(self, table: str) -> set[str]:
        return {path for path in self.s3.names("lake/") if re.search(r"/t\b.*/data/", path)}


def disturb(step: str, folder: Path) -> None:
    """Has something happen once: in a task that has written or found rows, or at a commit of t."""
    how, _, when = step.partition(" ")
    once = folder / f"happened-{step}"
    if when in _WHEN:
        name = _WHEN[when]
        function = partial(_disturbed, _INNER[name], once, _HAPPENS[how])
        setattr(positions, name, function)
    elif when == "commit":
        for owner, name in _COMMITS:
            setattr(owner, name, partial(_ended, getattr(owner, name), once, how))


def _disturbed(
    inner: Callable[..., Any], once: Path, happen: Callable[[], None], *given: Any, **more: Any
) -> Any:
    found = list(inner(*given, **more))
    if found:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return found
        happen()
    return found


def _ended(
    inner: Callable[..., Any], once: Path, how: str, table: Any, *given: Any, **more: Any
) -> Any:
    is_t = isinstance(table, DeltaTable) or table.name()[-1] == "t"
    for moment in ("before", "after"):
        if moment == how and is_t:
            once.touch()
            os.kill(os.getpid(), SIGKILL)
        if moment == "before":
            result = inner(table, *given, **more)
    return result


def main(master: str, conf: str, story: str, url: str, folder: str) -> None:
    spark = open_session(master, json.loads(conf))
    # Several tasks read the events, and one reads each block of t for the copy.
    batch_module.DRIVER_SIDE_EVENTS, events.ONE_TASK_EVENTS = -1, 0
    rows.row_ranges = partial(rows.row_ranges, blocks=1)
    given = json.loads(story)
    lake = Lake(spark, url, Path(folder), given)
    for step in given["steps"]:
        if step not in ("copy", "again"):
            lake.sql(CHANGES)
            lake.tick()
        # With history, a copy shuffles its rows, and so writes as many files.
        spark.conf.set("spark.sql.shuffle.partitions", "64" if step == "copy" else "2")
        disturb(step, Path(folder))
        lake.apply()
        lake.check()
    print(json.dumps({"files": len(lake.files(T)), "copied": len(lake.copied)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
