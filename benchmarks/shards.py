"""Measures how fast the events of 1, 2 and 4 shards are stored: `python -m benchmarks.shards`.

Each shard is a server of its own on this machine, which has its part of the events. A run in this
process reads them side by side, parses them and stores them as Parquet. Prints a Markdown table.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from benchmarks.drain import fill
from benchmarks.measure import Result, to_markdown
from pgque_dagster import ParquetBatchIOManager, PgqueResource, SparkBatch, pgque_asset
from pgque_dagster.embedded import EmbeddedPostgres


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    session = LazyPySparkResource(
        spark_config={"spark.master": options.master, "spark.ui.enabled": "false"}
    )
    results = []
    for shards in options.shards:
        with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
            seconds = measure(Path(folder), shards, options.events, session)
        results.append(
            Result(
                f"store {options.events:,} events of {shards} shards (events/s)",
                "",
                options.events / seconds,
                ">=",
                None,
                f"{seconds:.1f} s, with {options.master}",
            )
        )
    print(to_markdown(results))


def measure(folder: Path, shards: int, events: int, session: LazyPySparkResource) -> float:
    """Returns how many seconds a run takes to store the events of all shards, and to ack them."""
    names = [f"shard{number}" for number in range(shards)]

    @pgque_asset(queue="orders", databases=names)
    def orders(batch: SparkBatch) -> DataFrame:
        return batch.payload("id bigint not null, customer bigint not null, total double")

    with ExitStack() as stack:
        resources = {}
        for name in names:
            server = stack.enter_context(EmbeddedPostgres(folder / name))
            fill(server.url, events // shards)
            resources[name] = PgqueResource(url=server.url)

        manager = ParquetBatchIOManager(base_dir=str(folder / "lake"))
        # Spark starts here, if it has not.
        assert session.spark_session
        started = time.monotonic()
        # A run by hand claims up to 10,000,000 events of each.
        dg.materialize([orders], resources={**resources, "pyspark": session, "io_manager": manager})
        return time.monotonic() - started


if __name__ == "__main__":
    main()
