"""Measures what a batch of random updates writes into replicas of tables of different sizes."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.measure import Result
from benchmarks.servers import connect
from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas, LakeReplicas
from pgque_dagster.spark.replicas.replicate import replicate

CHANGES = 1_000
_CREATE = """
create table {0} (
    id bigint primary key, customer integer, total numeric(12, 2), at timestamptz, note text);
insert into {0}
select n, n % 1000, n % 977 / 4.0, '2026-01-01'::timestamptz + n * interval '1 second',
    md5(n::text)
from generate_series(1, {1}) n
"""


def measure(spark: SparkSession, url: str, folder: Path, sizes: Sequence[int]) -> list[Result]:
    """Copies tables, and applies batches of updates to each kind of replica."""
    return [each for size in sizes for each in _of_size(spark, url, folder / str(size), size)]


def _of_size(spark: SparkSession, url: str, folder: Path, size: int) -> list[Result]:
    table = f"public.sized_{size}"
    targets: Mapping[str, LakeReplicas] = {
        "delta": DeltaReplicas(str(folder / "delta")),
        "delta_old": DeltaReplicas(str(folder / "delta_old"), deletion_vectors=False),
        "iceberg": IcebergReplicas(str(folder / "iceberg")),
        "iceberg_old": IcebergReplicas(
            str(folder / "iceberg_old"), catalog_schema="iceberg_old", merge_on_read=False
        ),
    }
    queue = f"sized_{size}"
    with connect(url) as db, Client(url) as client:
        db.execute(_CREATE.format(table, size).encode())
        client.create_queue(queue)
        capture_new(client, queue, [table])
        for name in targets:
            client.register_consumer(queue, name)
        found: dict[str, tuple[float, float, float]] = {}

        def apply(name: str) -> None:
            while (claim := client.claim(queue, name, owner="benchmark")) is not None:
                list(replicate(SparkBatch(spark, claim, url), [table], targets[name], log=_quiet))
                claim.ack()

        for name in targets:
            while not is_copied(client, queue, name):
                client.force_next_tick(queue)
                client.ticker()
                apply(name)
        # The first batch warms up.
        for place in range(2):
            ids = random.Random(place).sample(range(1, size + 1), CHANGES)
            db.execute(f"update {table} set total = 0 where id = any(%s)".encode(), (ids,))
            client.force_next_tick(queue)
            client.ticker()
            for name in targets:
                written, memory, start = _bytes_in(folder / name), _peak(reset=True), time.time()
                apply(name)
                seconds = time.time() - start
                grown = _bytes_in(folder / name) - written
                found[name] = grown / 1e6, seconds, (_peak() - memory) / 1e6
    return [
        _result("Delta", size, "without deletion vectors", found["delta"], found["delta_old"]),
        _result("Iceberg", size, "merge_on_read=False", found["iceberg"], found["iceberg_old"]),
    ]


def is_copied(client: Client, queue: str, consumer: str) -> bool:
    """Returns whether a replica is complete. Several batches copy a large table."""
    return any(each.consumer == consumer and each.is_copied for each in client.replicas(queue))


def _result(
    kind: str, size: int, against: str, ours: Sequence[float], theirs: Sequence[float]
) -> Result:
    return Result(
        f"{kind}: MB written for {CHANGES:,} random updates of {size:,} rows",
        against,
        ours[0],
        "<=",
        2,
        f"{ours[0]:.2f}/{theirs[0]:.1f} MB, {ours[1]:.1f}/{theirs[1]:.1f} s, driver "
        f"{ours[2]:+.0f}/{theirs[2]:+.0f} MB",
    )


def _quiet(_: str) -> None:
    """Discards the messages about copies."""


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _peak(*, reset: bool = False) -> int:
    """Returns this process's peak memory; after a reset, its current memory."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (
        each
        for each in Path("/proc/self/status").read_text().splitlines()
        if each.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024
