"""Measures the file and table sinks against Spark's own Parquet writer: `make bench-lake`.

They take turns storing the same rows as one batch, on a local disk. Prints a Markdown table;
`--write` puts it into docs/benchmarks.md.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.measure import Contender, Result, medians, timed, to_markdown, write_section
from harness.leftovers import end_with_this_process
from pgque_dagster import installer
from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgres
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink, SparkBatch
from pgque_dagster.spark.sinks import publication
from tests.support.queues.events import claim, make_queue, publish, tick

EVENTS = 2_000_000
BATCHES = 1_000
FILES = 100
TARGETS = {"Parquet": 1.15, "Delta": 1.25, "Iceberg": 1.35}
PUBLISHING_SECONDS = 0.2
READING = 1.2

_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_SPARK = "Spark"
_PAYLOAD = "id bigint, customer bigint, total decimal(12, 2), at timestamp, note string"
_SEND = """
select cardinality(pgque.send_batch('orders', 'order', array(
    select format('{"id": %%s, "customer": %%s, "total": %%s.25, "at": "2026-01-01T00:00:00Z", '
                  '"note": "%%s"}', x, x %% 1000, x %% 977, md5(x::text))
    from generate_series(%s::integer, %s::integer) x)))
"""

Read = Callable[[], DataFrame]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds after a warm-up")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--batches", type=int, default=BATCHES, help="of the tables to read")
    parser.add_argument("--folder", default=None, help="on the disk to measure")
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")
    with (
        tempfile.TemporaryDirectory(prefix="pgque-lake-", dir=given.folder) as folder,
        bench(Path(folder)) as made,
    ):
        results = []
        for measured in (
            partial(made.storing, given.events),
            partial(made.storing_payloads, given.events),
            made.publishing,
            partial(made.reading, given.batches),
        ):
            for result in measured(given.rounds):
                print(f"{result.what}: {result.figure:.2f}", file=sys.stderr)
                results.append(result)
    table = to_markdown(results)
    print(table)
    if given.write:
        write_section(_REPORT, "lake", table)


@contextmanager
def bench(folder: Path) -> Iterator["Bench"]:
    """A queue on its own server, and a Spark session."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .getOrCreate()
    )
    with EmbeddedPostgres(folder / "postgres") as server:
        installer.install(server.url)
        with Client(server.url) as client:
            make_queue(client)
            yield Bench(spark, client, folder)
    spark.stop()


class Bench:
    """Stores batches by each sink."""

    def __init__(self, spark: SparkSession, client: Client, folder: Path) -> None:
        self._spark = spark
        self._client = client
        self._folder = folder
        self._tables = 0

    def storing(self, events: int, rounds: int) -> list[Result]:
        """Measures storing one batch."""
        frame = rows(self._spark, events)
        frame.persist().count()
        contenders = [Contender(_SPARK, lambda: self._by_spark(frame))]
        for kind in TARGETS:
            contenders.append(Contender(kind, partial(self._by_sink, kind, frame)))
        found = medians(contenders, rounds)
        frame.unpersist()
        return [
            Result(
                f"{kind}: store a batch of {events:,} events",
                "Spark's Parquet writer",
                found[kind] / found[_SPARK],
                "<=",
                target,
                f"{found[kind]:.2f}/{found[_SPARK]:.2f} s",
            )
            for kind, target in TARGETS.items()
        ]

    def storing_payloads(self, events: int, rounds: int) -> list[Result]:
        """Measures reading one batch from PostgreSQL, parsing its payloads, and storing them."""
        with psycopg.connect(self._client.url, autocommit=True) as connection:
            for first in range(1, events + 1, 100_000):
                connection.execute(_SEND, [first, min(first + 99_999, events)])
        tick(self._client)

        def stored(kind: str) -> float:
            claimed = claim(self._client)
            batch = SparkBatch(self._spark, claimed, self._client.url)
            payloads = batch.payload(_PAYLOAD, on_malformed="keep")
            if kind == _SPARK:
                seconds = self._by_spark(payloads)
            else:
                target = self._location()
                seconds = timed(lambda: self._sink(kind, target).write(batch, payloads))
                shutil.rmtree(target)
            claimed.release()
            return seconds

        found = medians(
            [Contender(kind, partial(stored, kind)) for kind in (_SPARK, *TARGETS)], rounds
        )
        claim(self._client).ack()
        return [
            Result(
                f"{kind}: read, parse and store {events:,} events",
                "Spark's Parquet writer",
                found[kind] / found[_SPARK],
                "<=",
                target,
                f"{found[kind]:.2f}/{found[_SPARK]:.2f} s",
            )
            for kind, target in TARGETS.items()
        ]

    def publishing(self, rounds: int) -> list[Result]:
        """Measures the part after the tasks, for a batch of many files."""
        frame = rows(self._spark, FILES * 10).repartition(FILES)

        def cost(kind: str) -> float:
            with publishing_timed() as seconds:
                self._by_sink(kind, frame)
            return seconds[-1]

        contenders = [Contender(kind, partial(cost, kind)) for kind in TARGETS]
        found = medians(contenders, rounds)
        return [
            Result(
                f"{kind}: publish {FILES} files",
                "seconds",
                found[kind],
                "<=",
                PUBLISHING_SECONDS,
                f"{found[kind] * 1000:.0f} ms",
            )
            for kind in TARGETS
        ]

    def reading(self, batches: int, rounds: int) -> list[Result]:
        """Measures reading a table of many batches after its maintenance."""
        results = []
        for kind, target in dict.fromkeys(TARGETS, READING).items():
            location = self._location()
            for number in range(batches):
                self._store(kind, location, rows(self._spark, 100, number, partitions=1))
            flat = self._location()
            self._read(kind, location).coalesce(1).write.parquet(str(flat))
            self._compact(kind, location)
            found = medians(
                [
                    Contender("table", partial(added_up, partial(self._read, kind, location))),
                    Contender("flat", partial(added_up, partial(self._flat, flat))),
                ],
                rounds,
            )
            results.append(
                Result(
                    f"{kind}: read a table of {batches:,} batches",
                    "the same rows in one file",
                    found["table"] / found["flat"],
                    "<=",
                    target,
                    f"{found['table']:.2f}/{found['flat']:.2f} s",
                )
            )
        return results

    def _by_spark(self, frame: DataFrame) -> float:
        target = self._location()
        seconds = timed(lambda: frame.write.parquet(str(target)))
        shutil.rmtree(target)
        return seconds

    def _by_sink(self, kind: str, frame: DataFrame) -> float:
        target = self._location()
        seconds = self._store(kind, target, frame)
        shutil.rmtree(target)
        return seconds

    def _store(self, kind: str, location: Path, frame: DataFrame) -> float:
        publish(self._client, [{"number": 1}])
        claimed = self._client.claim("orders", "revenue", owner="benchmark")
        assert claimed is not None
        sink = self._sink(kind, location)
        batch = SparkBatch(self._spark, claimed, self._client.url)
        seconds = timed(lambda: sink.write(batch, frame))
        claimed.ack()
        return seconds

    def _read(self, kind: str, location: Path) -> DataFrame:
        sink = self._sink(kind, location)
        found: DataFrame = (
            sink.read(self._spark, self._client.url)
            if isinstance(sink, IcebergSink)
            else sink.read(self._spark)
        )
        return found

    def _compact(self, kind: str, location: Path) -> None:
        """Does what the maintenance job does."""
        self._sink(kind, location).maintain(self._spark, self._client.url)

    def _flat(self, folder: Path) -> DataFrame:
        return self._spark.read.parquet(str(folder))

    @staticmethod
    def _sink(kind: str, location: Path) -> Any:
        if kind == "Parquet":
            return ParquetSink(location)
        if kind == "Delta":
            return DeltaSink(location)
        return IcebergSink(f"bench.{location.name}", warehouse=location)

    def _location(self) -> Path:
        self._tables += 1
        return self._folder / f"table_{self._tables}"


@contextmanager
def publishing_timed() -> Iterator[list[float]]:
    """Measures each publication of any sink in the block."""
    original = publication.publish
    seconds: list[float] = []

    def publishing(claim: Any, output: Any) -> None:
        start = time.perf_counter()
        original(claim, output)
        seconds.append(time.perf_counter() - start)

    modules = [each for each in sys.modules.values() if getattr(each, "publish", None) is original]
    for module in modules:
        setattr(module, "publish", publishing)  # noqa: B010
    try:
        yield seconds
    finally:
        for module in modules:
            setattr(module, "publish", original)  # noqa: B010


def rows(spark: SparkSession, count: int, seed: int = 0, partitions: int = 2) -> DataFrame:
    """Rows of orders, about 60 bytes each."""
    return spark.range(seed, seed + count, numPartitions=partitions).select(
        "id",
        (f.col("id") % 1000).alias("customer"),
        (f.col("id") % 977 / 4).cast("decimal(12, 2)").alias("total"),
        f.timestamp_seconds(f.col("id") + 1_700_000_000).alias("at"),
        f.md5(f.col("id").cast("string")).alias("note"),
    )


def added_up(read: Read) -> float:
    """Reads all columns; returns the seconds."""
    return timed(
        lambda: read().agg(f.sum("id"), f.sum("total"), f.count("at"), f.count("note")).collect()
    )


if __name__ == "__main__":
    end_with_this_process()
    main()
