"""The queue orders with its consumer revenue, and runs of assets that consume it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import (
    DeltaBatchIOManager,
    IcebergBatchIOManager,
    ParquetBatchIOManager,
    PgqueResource,
    SparkBatch,
    pgque_asset,
)
from pgque_dagster.client import Client
from pgque_dagster.client.encoding import Payload
from tests.dagster.support import SessionHolder, StoringIOManager, forgetful_instance
from tests.support.queues.events import claim, publish

consuming = partial(pgque_asset, queue="orders", consumer="revenue")
Result = dg.ExecuteInProcessResult


def texts(batch: SparkBatch) -> list[str]:
    return sorted(row.ev_data for row in batch.events(["ev_data"]).collect())


@dataclass
class Orders:
    client: Client
    spark: SparkSession

    @property
    def resources(self) -> dict[str, Any]:
        return {
            "pgque": PgqueResource(url=self.client.url),
            "pyspark": SessionHolder(self.spark),
            "io_manager": StoringIOManager(),
        }

    def publish(self, *batches: Sequence[Payload]) -> list[int]:
        """Publishes each batch in a tick of its own; returns the ids of all events."""
        return [event_id for payloads in batches for event_id in publish(self.client, payloads)]

    def run(
        self,
        *assets: Any,
        manager: Any = None,
        resources: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        instance: dg.DagsterInstance | None = None,
        **options: Any,
    ) -> Result:
        """Materializes assets.

        Args:
            assets: the first of which may have a config.
            manager: the IO manager; by default one that keeps everything in memory.
            resources: more of them.
            config: of the first asset.
            instance: by default one whose runs nobody asks about.
            options: more of Dagster's, such as tags.
        """
        given = {"io_manager": manager} if manager else {}
        ops = {"ops": {assets[0].op.name: {"config": config}}} if config else None
        return dg.materialize(
            assets,
            resources={**self.resources, **given, **(resources or {})},
            run_config=ops,
            raise_on_error=False,
            instance=instance or forgetful_instance(),
            **options,
        )

    def is_free(self) -> bool:
        """Whether a batch waits, which nobody works on."""
        lease = self.client.lease_info("orders", "revenue")
        waits = self.client.next_batch("orders", "revenue") is not None
        return waits and not (lease is not None and lease.is_live)

    def is_consumed(self) -> bool:
        return self.client.next_batch("orders", "revenue") is None

    def left(self) -> list[str | None]:
        """Takes what the queue still delivers."""
        found = []
        while not self.is_consumed():
            batch = claim(self.client)
            found += [event.payload for event in batch.events()]
            batch.ack()
        return found

    def consume(self, *batches: Sequence[Payload]) -> list[int]:
        """Publishes batches and acks each; returns the ticks around them."""
        ticks = set()
        for payloads in batches:
            self.publish(payloads)
            batch = claim(self.client)
            ticks |= {batch.lease.prev_tick_id, batch.lease.tick_id}
            batch.ack()
        return sorted(ticks)

    def consumers(self) -> list[str]:
        return [consumer.name for consumer in self.client.consumers("orders")]

    def dead_letters(self) -> int:
        return sum(each.count for each in self.client.dead_letter_counts("orders"))


@pytest.fixture
def orders(client: Client, spark: SparkSession) -> Orders:
    return Orders(client, spark)


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def manager(request: pytest.FixtureRequest, orders: Orders, tmp_path: Path) -> Any:
    session = SessionHolder(orders.spark)
    if request.param == "iceberg":
        pgque = PgqueResource(url=orders.client.url)
        return IcebergBatchIOManager(pgque=pgque, warehouse=str(tmp_path), pyspark=session)
    kind = ParquetBatchIOManager if request.param == "parquet" else DeltaBatchIOManager
    return kind(base_dir=str(tmp_path), pyspark=session)


def error_of(result: Result) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def materialized(result: Result, asset: str | None = None) -> list[dg.AssetMaterialization]:
    """The materializations of a run, or of one asset, in order."""
    found = [
        event.materialization
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION
    ]
    return [each for each in found if asset in (None, each.asset_key.to_user_string())]


def values(made: dg.AssetMaterialization | dg.AssetObservation) -> dict[str, Any]:
    """The metadata as plain values."""
    return {key: entry.value for key, entry in made.metadata.items()}
