"""The replay of a consumer in YAML."""

from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import BatchConsumerComponent, PgqueResource
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder
from tests.support.events import claim, publish


def payloads(events: DataFrame) -> DataFrame:
    """Returns the payloads."""
    return events.select("ev_data")


def test_a_consumer_has_an_asset_for_replays_that_stores_beside_its_own(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    component = BatchConsumerComponent.from_attributes_dict(
        attributes={
            "queue": "orders",
            "transform": "tests.dagster.components.test_components_replay.payloads",
            "name": "revenue",
            "sink": {"base_dir": str(tmp_path)},
            "replay": {"group_name": "replays"},
        }
    )
    definitions = dg.Definitions.merge(
        dg.build_defs_for_component(component),
        dg.Definitions(
            jobs=[dg.define_asset_job("replay", "revenue_replay")],
            resources={"pgque": PgqueResource(url=client.url), "pyspark": SessionHolder(spark)},
        ),
    )
    publish(client, ["a", "b"])
    batch = claim(client)
    batch.ack()
    ticks = {"from_tick": batch.lease.prev_tick_id, "to_tick": batch.lease.tick_id}

    job = definitions.resolve_job_def("replay")
    job.execute_in_process(run_config={"ops": {"revenue_replay": {"config": ticks}}})

    table = spark.read.parquet(str(tmp_path / "revenue_replay"))
    assert sorted(row.ev_data for row in table.collect()) == ["a", "b"]
    assert not (tmp_path / "revenue").exists()
    spec = definitions.resolve_assets_def("revenue_replay").get_asset_spec()
    assert spec.group_name == "replays"


def test_the_replay_of_a_consumer_is_kept_beside_its_table() -> None:
    component = BatchConsumerComponent.from_attributes_dict(
        attributes={
            "queue": "orders",
            "transform": "tests.dagster.components.test_components_replay.payloads",
            "sink": {"type": "postgres"},
            "metadata": {"dagster/table_name": "sales.revenue"},
            "replay": {},
        }
    )

    _, replay = dg.build_defs_for_component(component).assets or ()

    assert isinstance(replay, dg.AssetsDefinition)
    assert replay.key == dg.AssetKey("payloads_replay")
    assert replay.get_asset_spec().metadata["dagster/table_name"] == "sales.revenue_replay"


def test_a_consumer_has_no_asset_for_replays_unless_it_is_said() -> None:
    component = BatchConsumerComponent(queue="orders", transform=payloads, io_manager_key="mine")

    (asset,) = dg.build_defs_for_component(component).assets or ()

    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.key == dg.AssetKey("payloads")
