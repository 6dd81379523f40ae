"""Parquet that was written by a server which is lost, and the standby that was promoted."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.sinks import ParquetSink
from tests.support.events import claim, make_queue, publish
from tests.support.replicas import Replicas, cut_off, replicas


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


def store(client: Client, spark: SparkSession, folder: Path) -> tuple[int, int]:
    """Stores the next batch's payloads and acks it; returns its id and its last tick."""
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, client.url)
    ParquetSink(str(folder)).write(batch, batch.events().select("ev_data"))
    claimed.ack()
    return claimed.batch_id, claimed.lease.tick_id


def stored(folder: Path, spark: SparkSession) -> list[str]:
    return sorted(row.ev_data for row in ParquetSink(str(folder)).read(spark).collect())


def test_parquet_of_a_lost_server_is_refused_until_its_lost_batches_are_removed(
    servers: Replicas, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    primary = servers.primary()
    standby = servers.standby(primary)
    with Client(primary.url()) as client:
        make_queue(client)
        publish(client, ["kept"])
        written = [store(client, spark, folder)]
        publish(client, ["survivor"])
        cut_off(standby, primary)
        for text in ("lost 1", "lost 2"):
            written.append(store(client, spark, folder))
            publish(client, [text])
        written.append(store(client, spark, folder))
        old = client.lineage()
    standby.promote()

    with Client(standby.url()) as client:
        publish(client, ["new"])
        with pytest.raises(InvalidArgument) as refused:
            store(client, spark, folder)

        assert stored(folder, spark) == ["kept", "lost 1", "lost 2", "survivor"]
        assert "After a failover or a restore" in str(refused.value)
        assert "docs/restore.md" in str(refused.value)
        (consumer,) = client.consumers("orders")
        for batch, last_tick in written:
            if last_tick > (consumer.last_tick_id or 0):
                shutil.rmtree(folder / f"batch_id={batch}")
        marks = folder / "_pgque" / "lineages"
        (marks / str(old)).rename(marks / str(client.lineage()))
        again = {store(client, spark, folder)[0] for _ in range(2)}

    assert stored(folder, spark) == ["kept", "new", "survivor"]
    assert not again & {batch for batch, _ in written}
