"""Measures table replicas, and what capturing their changes costs: `make bench-replica`.

Needs the Debian packages postgresql-15 and libpostgresql-jdbc-java. Prints a Markdown table;
`--write` puts it into docs/benchmarks.md.
"""

import argparse
import itertools
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from benchmarks.capturing import measure as measure_capture
from benchmarks.capturing import measure_relay
from benchmarks.measure import Contender, Result, medians, timed, to_markdown, write_section
from benchmarks.replica_sizes import is_copied
from benchmarks.replica_sizes import measure as measure_sizes
from benchmarks.servers import connect
from benchmarks.spark import server, session, tcp_url
from harness.leftovers import end_with_this_process
from pgque_dagster.client import Batch, Client
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.postgres import replicate as postgres
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.spark import DeltaSink, IcebergSink, SparkBatch
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas
from pgque_dagster.spark.replicas.replicate import replicate

Target = DeltaReplicas | IcebergReplicas | PostgresReplicas

ROWS = 500_000
CHANGES = 50_000
SIZES = (1_000_000, 10_000_000, 30_000_000)
# The rate of one-row transactions while the lag is measured, and how often a batch is made.
RATE, TICK_SECONDS = 100, 1.0
FORMATS = "Delta", "Iceberg", "PostgreSQL"

_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_QUEUE, _TABLE = "changes", "public.orders"
_STATEMENT_ROWS = 1000
_CREATE = """
create table orders (
    id bigint primary key, customer integer, total numeric(12, 2), at timestamptz, note text)
"""
_FILL = """
insert into orders
select n, n %% 1000, n %% 977 / 4.0, '2026-01-01'::timestamptz + n * interval '1 second',
    md5(n::text)
from generate_series(1, %s) n
"""
_INSERT = """
insert into orders
select n, 1, 1, now(), md5(n::text) from generate_series(%s::integer, %s::integer) n
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the table")
    parser.add_argument("--changes", type=int, default=CHANGES, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds after a warm-up")
    parser.add_argument("--seconds", type=int, default=25, help="how long the lag is measured")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=SIZES, help="of tables with random updates"
    )
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    given = parser.parse_args()
    os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")
    with server() as running, tempfile.TemporaryDirectory(prefix="pgque-replica-") as folder:
        url = tcp_url(running)
        results = measure_capture(url, rounds=given.rounds)
        results += measure_relay(url, rounds=given.rounds)
        with connect(running.url) as db:
            db.execute("create database copies")
        with session() as spark:
            results += measure_sizes(
                spark, running.database_url("bench"), Path(folder), given.sizes
            )
        with session() as spark, bench(spark, url, Path(folder), given.rows) as made:
            for kind in FORMATS:
                results += [
                    made.copy(kind, given.rounds),
                    made.sustained(kind, given.changes, given.rounds),
                    made.lag(kind, given.seconds),
                ]
    table = to_markdown(results)
    print(table)
    if given.write:
        write_section(_REPORT, "replicas", table)


@contextmanager
def bench(spark: SparkSession, url: str, folder: Path, rows: int) -> Iterator["Bench"]:
    """A captured table with rows, and a client."""
    with connect(url) as db, Client(url) as client:
        db.execute(_CREATE)
        db.execute(_FILL, (rows,))
        db.execute("vacuum analyze orders")
        client.create_queue(_QUEUE)
        capture_new(client, _QUEUE, [_TABLE])
        yield Bench(spark, client, folder, rows)


class Bench:
    """Replicates one table into each format.

    Args:
        spark: the session.
        client: a client of the table's database.
        folder: where the replicas in the lake are.
        rows: how many rows the table has.
    """

    def __init__(self, spark: SparkSession, client: Client, folder: Path, rows: int) -> None:
        self._spark, self._client, self._folder, self._rows = spark, client, folder, rows
        self._numbers = itertools.count(1)
        self._first, self._last = 1, rows
        self._targets: dict[str, Target] = {}
        self._chance = random.Random(1)

    def copy(self, kind: str, rounds: int) -> Result:
        """Measures the first copy, and the same rows read by JDBC and stored in the same format."""
        self._client.register_consumer(_QUEUE, kind)
        found = medians(
            [
                Contender("ours", partial(self._copy, kind)),
                Contender("jdbc", partial(self._copy_by_jdbc, kind)),
            ],
            rounds,
        )
        rates = {name: self._rows / seconds for name, seconds in found.items()}
        return Result(
            f"{kind}: first copy of {self._rows:,} rows",
            "Spark JDBC, same format",
            rates["ours"] / rates["jdbc"],
            ">=",
            1,
            f"{rates['ours']:,.0f}/{rates['jdbc']:,.0f} rows/s",
        )

    def sustained(self, kind: str, changes: int, rounds: int) -> Result:
        """Measures how many changes are applied while as many are made, after a warm-up batch."""
        target = self._follow(kind)
        self._change(changes)
        with ThreadPoolExecutor(1) as pool:

            def cycle() -> None:
                self._tick()
                changing = pool.submit(self._change, changes)
                self._replicate(kind, target)
                changing.result()

            cycle()
            seconds = timed(cycle, rounds)
        return Result(
            f"{kind}: changes/s, made and applied",
            f"batches of {changes:,}",
            changes / seconds,
            ">=",
            None,
            f"{seconds:.2f} s a batch",
        )

    def lag(self, kind: str, seconds: int) -> Result:
        """Measures the time from a change to the ack of its batch."""
        target = self._follow(kind)
        lags: list[float] = []
        with self._changing_rows():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                start = time.monotonic()
                self._tick()
                sent: list[float] = []
                self._replicate(kind, target, sent)
                now = time.time()
                lags += [now - each for each in sent]
                time.sleep(max(0.0, start + TICK_SECONDS - time.monotonic()))
        marks = statistics.quantiles(lags, n=100)
        return Result(
            f"{kind}: lag at {RATE} changes/s, p50 (s)",
            f"a tick every {TICK_SECONDS:g} s",
            marks[49],
            "<=",
            None,
            f"p99 {marks[98]:.2f} s of {len(lags):,} changes",
        )

    def _follow(self, kind: str) -> Target:
        """Returns the replica that stays, brought up to date."""
        target = self._targets.setdefault(kind, self._target(kind))
        self._replicate_all(kind, target)
        return target

    def _copy(self, kind: str) -> float:
        target = self._target(kind)
        seconds = timed(lambda: self._replicate_all(kind, target))
        self._remove(target)
        return seconds

    def _replicate_all(self, kind: str, target: Target) -> None:
        """Copies the table, in as many batches as needed, or applies all changes."""
        while True:
            self._tick()
            self._replicate(kind, target)
            if is_copied(self._client, _QUEUE, kind):
                return

    def _target(self, kind: str) -> Target:
        place = f"copy_{next(self._numbers)}"
        if kind == "Delta":
            return DeltaReplicas(str(self._folder / place))
        if kind == "Iceberg":
            return IcebergReplicas(str(self._folder / place), catalog_schema=place)
        return PostgresReplicas(self._copies_url(), schema=place)

    def _replicate(self, kind: str, target: Target, sent: list[float] | None = None) -> None:
        """Applies all batches, and adds to `sent` when each of their changes was made."""
        while (claim := self._client.claim(_QUEUE, kind, owner="benchmark")) is not None:
            if sent is not None:
                sent += [each.created_at.timestamp() for each in claim.events()]
            if isinstance(target, PostgresReplicas):
                postgres.replicate(claim, [_TABLE], target, log=_quiet)
            else:
                batch = SparkBatch(self._spark, claim, self._client.url)
                list(replicate(batch, [_TABLE], target, log=_quiet))
            claim.ack()

    def _copy_by_jdbc(self, kind: str) -> float:
        place = f"jdbc_{next(self._numbers)}"
        if kind == "PostgreSQL":
            options = _jdbc_options(self._copies_url(), place)

            def store() -> None:
                self._read_by_jdbc().write.format("jdbc").options(**options).save()

            seconds = timed(store)
            with connect(self._copies_url()) as db:
                db.execute(f"drop table {place}".encode())
            return seconds
        sink: DeltaSink | IcebergSink = (
            DeltaSink(self._folder / place)
            if kind == "Delta"
            else IcebergSink(f"bench.{place}", warehouse=self._folder / place)
        )
        self._tick()
        claim = self._claim(kind)
        batch = SparkBatch(self._spark, claim, self._client.url)
        seconds = timed(lambda: sink.write(batch, self._read_by_jdbc()))
        claim.ack()
        shutil.rmtree(self._folder / place)
        return seconds

    def _read_by_jdbc(self) -> DataFrame:
        return (
            self._spark.read.format("jdbc")
            .options(**_jdbc_options(self._client.url, _TABLE))
            .options(
                partitionColumn="id",
                lowerBound="1",
                upperBound=str(self._rows),
                numPartitions="2",
            )
            .load()
        )

    def _claim(self, kind: str) -> Batch:
        claim = self._client.claim(_QUEUE, kind, owner="benchmark")
        assert claim is not None
        return claim

    def _remove(self, target: Target) -> None:
        if isinstance(target, PostgresReplicas):
            with connect(self._copies_url()) as db:
                db.execute(f"drop schema {target.schema} cascade".encode())
        else:
            folder = target.base_dir if isinstance(target, DeltaReplicas) else target.warehouse
            shutil.rmtree(folder)

    def _tick(self) -> None:
        self._client.force_next_tick(_QUEUE)
        self._client.ticker()

    def _change(self, changes: int) -> None:
        """Changes rows, a thousand per statement; 8 of 10 statements update random rows."""
        with connect(self._client.url) as db:
            part = _STATEMENT_ROWS // 10
            for _ in range(changes // _STATEMENT_ROWS):
                ids = self._chance.sample(range(self._first + part, self._last), 8 * part)
                with db.transaction():
                    db.execute("update orders set total = total + 1 where id = any(%s)", (ids,))
                    db.execute(_INSERT, (self._last + 1, self._last + part))
                    db.execute("delete from orders where id < %s", (self._first + part,))
                self._first += part
                self._last += part

    @contextmanager
    def _changing_rows(self) -> Iterator[None]:
        """Updates rows while the block runs, one per transaction."""
        done = threading.Event()

        def change() -> None:
            with connect(self._client.url) as db:
                due = time.monotonic()
                while not done.wait(max(0.0, due - time.monotonic())):
                    due += 1 / RATE
                    row = self._chance.randrange(self._first, self._last)
                    db.execute("update orders set total = total + 1 where id = %s", (row,))

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _copies_url(self) -> str:
        return psycopg.conninfo.make_conninfo(self._client.url, dbname="copies")


def _jdbc_options(url: str, table: str) -> dict[str, str]:
    given = conninfo_to_dict(url)
    return {
        "url": f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}",
        "user": str(given["user"]),
        "driver": "org.postgresql.Driver",
        "dbtable": table,
        # Without this, the driver fetches the whole result before it returns the first row.
        "fetchsize": "10000",
    }


def _quiet(text: str) -> None:
    pass


if __name__ == "__main__":
    end_with_this_process()
    main()
