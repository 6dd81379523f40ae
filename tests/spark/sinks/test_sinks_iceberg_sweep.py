"""A sweep of an Iceberg table: what dead attempts left goes, and nothing else."""

import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument
from pgque_dagster.spark import IcebergSink
from pgque_dagster.spark.sinks.iceberg_output import IcebergOutput
from tests.support.attempts import again, next_batch, once_before_the_swap
from tests.support.events import claim, publish
from tests.support.stored_tables import iceberg_catalog

SCHEMA = "number bigint"
TABLE = "sales.revenue"
OLD_SECONDS = 8 * 86400


@pytest.fixture
def sink(client: Client, spark: SparkSession, tmp_path: Path) -> IcebergSink:
    """A table with one batch, which is acked."""
    sink = IcebergSink(TABLE, warehouse=tmp_path / "warehouse")
    batch = next_batch(client, spark, [{"number": 1}])
    sink.write(batch, batch.payload(SCHEMA))
    batch.claim.ack()
    return sink


def acked(client: Client) -> Batch:
    claimed = claim(client)
    claimed.ack()
    return claimed


def taken_over(client: Client) -> Batch:
    claimed = claim(client)
    claim(client)
    return claimed


def released(client: Client) -> Batch:
    claimed = claim(client)
    claimed.release()
    return claimed


def unregistered(client: Client) -> Batch:
    claimed = claim(client)
    client.unregister_consumer("orders", "revenue")
    return claimed


def leased(client: Client) -> Batch:
    return claim(client)


def out_of_lease(client: Client) -> Batch:
    """Its holder may still renew the lease, because nobody took the batch over."""
    claimed = client.claim("orders", "revenue", owner="a test", ttl=timedelta(milliseconds=1))
    assert claimed is not None
    return claimed


@pytest.mark.parametrize("dead", [acked, taken_over, released, unregistered])
def test_old_files_of_attempts_that_ended_are_removed(
    client: Client, sink: IcebergSink, tmp_path: Path, dead: Callable[[Client], Batch]
) -> None:
    publish(client, [{"number": 2}])
    left = leave(tmp_path, dead(client))

    assert sink.sweep(client.url, dry_run=True) == [relative(left)]
    assert left.exists()
    assert sink.sweep(client.url) == [relative(left)]

    assert not left.exists()
    assert numbers(client) == [1]


@pytest.mark.parametrize("alive", [leased, out_of_lease])
def test_files_of_an_attempt_that_may_still_publish_are_kept(
    client: Client, sink: IcebergSink, tmp_path: Path, alive: Callable[[Client], Batch]
) -> None:
    publish(client, [{"number": 2}])
    left = leave(tmp_path, alive(client))

    assert sink.sweep(client.url) == []

    assert left.exists()


def test_young_files_and_those_of_others_are_kept(
    client: Client, sink: IcebergSink, tmp_path: Path
) -> None:
    publish(client, [{"number": 2}])
    claimed = acked(client)
    young = leave(tmp_path, claimed, seconds=6 * 86400)
    foreign = young.with_name("by-hand.parquet")
    foreign.touch()
    os.utime(foreign, (0, 0))

    assert sink.sweep(client.url) == []
    assert sink.sweep(client.url, older_than=timedelta(days=5)) == [relative(young)]

    assert foreign.exists()


def test_files_of_snapshots_that_the_table_still_has_are_kept(
    client: Client, spark: SparkSession, sink: IcebergSink, tmp_path: Path
) -> None:
    first = next_batch(client, spark, [{"number": 2}, {"number": 3}])
    before = sink.write(first, first.payload(SCHEMA)).version
    second = again(client, spark, first)
    sink.write(second, second.payload(SCHEMA).where("number = 3"))
    second.claim.ack()
    make_old(tmp_path)

    assert sink.sweep(client.url) == []
    assert numbers(client, before) == [1, 2, 3]

    catalog = iceberg_catalog(client.url)
    catalog.load_table(TABLE).maintenance.expire_snapshots().by_id(before).commit()
    kept = catalog.load_table(TABLE).snapshots()
    swept = sink.sweep(client.url)

    assert {path.split("/")[1].split("-")[1] for path in swept} == {str(first.claim.lease.epoch)}
    assert numbers(client) == [1, 3]
    assert catalog.load_table(TABLE).snapshots() == kept


def test_files_that_are_published_while_the_sweep_looks_are_kept(
    client: Client,
    spark: SparkSession,
    sink: IcebergSink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = next_batch(client, spark, [{"number": 2}])

    def swept() -> None:
        make_old(tmp_path)
        assert sink.sweep(client.url) == []

    once_before_the_swap(monkeypatch, IcebergOutput, swept)
    sink.write(batch, batch.payload(SCHEMA))
    batch.claim.ack()

    assert sink.sweep(client.url) == []
    assert numbers(client) == [1, 2]


def test_a_table_of_another_lineage_is_not_swept(
    client: Client, sink: IcebergSink, tmp_path: Path
) -> None:
    publish(client, [{"number": 2}])
    left = leave(tmp_path, acked(client))
    with iceberg_catalog(client.url).load_table(TABLE).transaction() as change:
        change.set_properties({"pgque.lineage": "another"})

    with pytest.raises(InvalidArgument, match=r"lineage another.*whose leases are live"):
        sink.sweep(client.url)

    assert left.exists()


def test_a_retention_that_is_shorter_than_attempts_and_a_missing_table_are_refused(
    client: Client, tmp_path: Path
) -> None:
    sink = IcebergSink("sales.nothing", warehouse=tmp_path)

    with pytest.raises(InvalidArgument, match="at least a day"):
        sink.sweep(client.url, older_than=timedelta(hours=1))
    with pytest.raises(InvalidArgument, match=r"there is no Iceberg table sales.nothing"):
        sink.sweep(client.url)


def leave(folder: Path, claimed: Batch, seconds: float = OLD_SECONDS) -> Path:
    """A file that an attempt wrote some time ago, and did not publish."""
    attempt = f"{claimed.batch_id}-{claimed.lease.epoch}-{uuid.uuid4().hex}"
    (table,) = (folder / "warehouse/sales").iterdir()
    path = table / "data" / attempt / f"part-{uuid.uuid4().hex}.parquet"
    path.parent.mkdir()
    path.touch()
    make_old(path.parent, seconds)
    return path


def make_old(folder: Path, seconds: float = OLD_SECONDS) -> None:
    for path in folder.rglob("*.parquet"):
        os.utime(path, (time.time() - seconds,) * 2)


def relative(path: Path) -> str:
    return "/".join(path.parts[-3:])


def numbers(client: Client, snapshot: int | None = None) -> list[int]:
    stored = iceberg_catalog(client.url).load_table(TABLE).scan(snapshot_id=snapshot).to_arrow()
    return sorted(stored["number"].to_pylist())
