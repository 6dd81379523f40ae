"""Measures what sending and storing cost with 1, 2 and 4 shards: `make bench-shards`.

Each shard is a server on this machine with its share of the events; all share the machine's cores.
A run in this process reads them in parallel, parses the events and stores them in Delta. The cost
of one shard gives the model of docs/scaling.md: a fixed time per run, and a time per event. The
cost of more shards is compared with it. Prints a Markdown table; `--write` puts it into
docs/benchmarks.md.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

from benchmarks.drain import send
from benchmarks.measure import Contender, Result, medians, timed, to_markdown, write_section
from harness.leftovers import end_with_this_process
from pgque_dagster import DeltaBatchIOManager, PgqueResource, SparkBatch, pgque_asset
from pgque_dagster.embedded import EmbeddedPostgres
from pgque_dagster.spark.cluster.session import open_session

_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_FEW = 1_000


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds after a warm-up")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    options = parser.parse_args()
    os.environ.setdefault("PGQUE_OPEN_FOLDERS", "1")
    spark = LazyPySparkResource(
        spark_config={"spark.master": options.master, "spark.ui.enabled": "false"}
    )
    open_session(spark)
    measured = []
    for shards in options.shards:
        with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder, ExitStack() as stack:
            bench = Bench(Path(folder), shards, spark, stack)
            measured.append(bench.measure(options.events, options.rounds))
    table = to_markdown([line for each in measured for line in results(each, measured[0])])
    print(table)
    if options.write:
        write_section(_REPORT, "shards", table)


@dataclass(frozen=True)
class Measured:
    """Median seconds with a number of shards.

    Attributes:
        shards: the number.
        events: how many events are sent, and stored by a run.
        sending: to send and tick them, with a session for each shard.
        run: for a run, from its claims to its acks.
        run_of_few: for a run over few events.
    """

    shards: int
    events: int
    sending: float
    run: float
    run_of_few: float


def results(measured: Measured, one: Measured) -> Iterator[Result]:
    """Yields the lines for a number of shards.

    Args:
        measured: the measurements with it.
        one: those with the fewest shards, which predict the time of a run.
    """
    shards = f"{measured.shards} shard{'s' if measured.shards > 1 else ''}"
    events = measured.events
    yield Result(
        f"{shards}: events/s sent by send_batch",
        "",
        events / measured.sending,
        ">=",
        None,
        f"{measured.sending:.1f} s for {events:,}",
    )
    yield Result(
        f"{shards}: events/s stored by one run",
        "",
        events / measured.run,
        ">=",
        None,
        f"{measured.run:.2f} s; {measured.run_of_few:.2f} s for {_FEW:,}",
    )
    yield Result(
        f"{shards}: time of the run",
        "prediction from 1 shard",
        measured.run / (measured.run_of_few + one.run - one.run_of_few),
        "<=",
        None,
        "",
    )


class Bench:
    """Shards, each with its own server, and an asset that stores their events.

    Args:
        folder: where servers and output are.
        shards: how many.
        spark: the resource with the session.
        stack: stops the servers.
    """

    def __init__(
        self, folder: Path, shards: int, spark: LazyPySparkResource, stack: ExitStack
    ) -> None:
        self._shards = shards
        names = [f"shard{number}" for number in range(shards)]
        servers = [stack.enter_context(EmbeddedPostgres(folder / name)) for name in names]
        self._urls = [server.url for server in servers]

        @pgque_asset(queue="orders", databases=names)
        def orders(batch: SparkBatch) -> DataFrame:
            return batch.payload("id bigint not null, customer bigint not null, total double")

        self._asset = orders
        self._resources = {
            **{name: PgqueResource(url=url) for name, url in zip(names, self._urls, strict=True)},
            "pyspark": spark,
            "io_manager": DeltaBatchIOManager(base_dir=str(folder / "lake")),
        }

    def measure(self, events: int, rounds: int) -> Measured:
        """Sends and stores many events and few events in turns."""
        sending = []

        def run(count: int) -> float:
            sending.append(timed(lambda: self._send(count)))
            # A run by hand claims up to 10,000,000 events of each shard.
            return timed(lambda: dg.materialize([self._asset], resources=self._resources))

        found = medians(
            [
                Contender("few", lambda: run(_FEW)),
                Contender("all", lambda: run(events)),
            ],
            rounds,
        )
        # The first round is a warm-up, and every other one is of few events.
        of_all = sorted(sending[3::2])
        return Measured(self._shards, events, of_all[len(of_all) // 2], found["all"], found["few"])

    def _send(self, events: int) -> None:
        with ThreadPoolExecutor(self._shards) as pool:
            list(pool.map(lambda url: send(url, events // self._shards), self._urls))


if __name__ == "__main__":
    end_with_this_process()
    main()
