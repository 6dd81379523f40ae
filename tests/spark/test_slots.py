"""Batches of slots as DataFrames: each event of the slot's keys once."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, Limits
from pgque_dagster.client.holder import Holder
from pgque_dagster.client.registrations import subscribe_slots
from pgque_dagster.spark import ParquetSink, SparkBatch
from tests.support.queues.events import tick

KEYS = [f"key {number}" for number in range(12)]
Row = tuple[str, int]


@pytest.fixture
def parted(database_url: str) -> Iterator[Client]:
    """A queue whose consumer has two slots."""
    with Client(database_url) as client:
        client.create_queue("orders")
        client.run(subscribe_slots("orders", "parted", 2))
        yield client


def publish(client: Client, *numbers: int) -> None:
    """An event of each key for each number, in one tick."""
    for number in numbers:
        for key in KEYS:
            client.send("orders", {"number": number}, partition_key=key)
    tick(client)


def claim(client: Client, slot: str) -> Batch | None:
    limits, ttl = Limits(), timedelta(minutes=1)
    return Holder("orders", "parted", slot=slot).claim(
        client, owner="a test", ttl=ttl, limits=limits
    )


def claimed(client: Client, slot: str) -> Batch:
    batch = claim(client, slot)
    assert batch is not None
    return batch


def read(spark: SparkSession, batch: Batch, url: str) -> list[Row]:
    """The batch in order, the same as events and as payloads."""
    frames = SparkBatch(spark, batch, url, slices=3)
    payloads = frames.payload("number int", keep=["ev_id", "ev_extra1"]).orderBy("ev_id").collect()
    events = frames.events(["ev_id", "ev_extra1"]).orderBy("ev_id").collect()
    assert [(row.ev_id, row.ev_extra1) for row in payloads] == [tuple(row) for row in events]
    assert frames.event_count == len(events)
    frames.close()
    return [(row.ev_extra1, row.number) for row in payloads]


def test_the_slots_together_have_each_event_once(
    parted: Client, spark: SparkSession, way: str
) -> None:
    publish(parted, *range(30))

    found = [read(spark, claimed(parted, slot), parted.url) for slot in ("0/2", "1/2")]

    assert not {key for key, _ in found[0]} & {key for key, _ in found[1]}
    assert sorted(found[0] + found[1]) == sorted((key, n) for key in KEYS for n in range(30))


def test_slots_store_side_by_side(parted: Client, spark: SparkSession, tmp_path: Path) -> None:
    publish(parted, 0)
    sink = ParquetSink(str(tmp_path / "stored"))
    batches = [claimed(parted, slot) for slot in ("0/2", "1/2")]
    for batch in batches:
        frames = SparkBatch(spark, batch, parted.url)
        for _ in range(2):  # another attempt replaces its own batch alone
            sink.write(frames, frames.payload("number int", keep=["ev_extra1"]))
            frames.claim.release()
            frames = SparkBatch(spark, claimed(parted, str(batch.slot)), parted.url)
        frames.claim.ack()

    rows = sink.read(spark).collect()
    assert sorted(row.ev_extra1 for row in rows) == sorted(KEYS)
    assert {row.batch_id for row in rows} == {batch.batch_id for batch in batches}
