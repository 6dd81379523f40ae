"""A project that replicates tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster import (
    DeltaReplicas,
    IcebergReplicas,
    PgqueResource,
    PostgresReplicas,
    build_table_replicas,
)
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder
from tests.support.queues.sql import connect
from tests.support.spark.delta_tables import read_delta
from tests.support.spark.lakes import iceberg_catalog

TABLES = ["public.orders", "public.items"]


class Shop:
    """A project that replicates the given tables, by default two, by default in PostgreSQL."""

    def __init__(
        self,
        url: str,
        spark: SparkSession,
        folder: Path,
        tables: Sequence[str] = TABLES,
        name: str = "shop",
        **options: Any,
    ) -> None:
        self.name, self.queue = name, options.get("queue", name)
        self.url, self.folder = url, folder
        self.resources = {"pgque": PgqueResource(url=url), "pyspark": SessionHolder(spark)}
        self.target = options.pop("target", None) or PostgresReplicas(schema="copies")
        self.is_iceberg = isinstance(self.target, IcebergReplicas)
        self.defs = build_table_replicas(name, tables, target=self.target, **options)
        self.instance = dg.DagsterInstance.ephemeral()
        bound = dg.Definitions.merge(self.defs, dg.Definitions(resources=self.resources))
        self.repository = bound.get_repository_def()

    def capture(self) -> str:
        context = dg.build_sensor_context(
            instance=self.instance, resources={"pgque": self.resources["pgque"]}
        )
        sensor = self.repository.get_sensor_def(f"{self.name}_capture")
        result = sensor.evaluate_tick(context)
        return str(result.skip_message)

    def look(self) -> Any:
        """Evaluates the sensor that requests a run for each batch, which waits for no tick."""
        context = dg.build_sensor_context(
            instance=self.instance, resources={"pgque": self.resources["pgque"]}
        )
        return self.repository.get_sensor_def(f"{self.name}_sensor").evaluate_tick(context)

    def tick(self, times: int = 1) -> None:
        with Client(self.url) as client:
            for _ in range(times):
                client.force_next_tick(self.queue)
                client.ticker()

    def run(self) -> dg.ExecuteInProcessResult:
        self.tick()
        job = self.repository.get_implicit_global_asset_job_def()
        (replicas,) = [x for x in self.defs.assets or () if is_replica(x, self.name)]
        return job.execute_in_process(
            instance=self.instance, asset_selection=list(replicas.keys), raise_on_error=False
        )

    def verify(self, config: dict[str, Any] | None = None) -> list[dg.AssetCheckEvaluation]:
        job = self.repository.get_job(f"{self.name}_verify")
        done = job.execute_in_process(instance=self.instance, run_config=config)
        return done.get_asset_check_evaluations()

    def rows(self, table: str) -> list[dict[str, Any]]:
        if isinstance(self.target, PostgresReplicas):
            name = table.partition(".")[2]
            with connect(self.url) as db:
                found = db.rows(f"select to_jsonb(t) from copies.{name} t order by id")
            return [row for (row,) in found]
        if self.is_iceberg:
            found = iceberg_catalog(self.url).load_table(table).scan().to_arrow()
        else:
            found = read_delta(DeltaTable(str(self.folder / table.replace(".", "/"))))
        return sorted(found.to_pylist(), key=repr)

    def files(self, table: str) -> int:
        if self.is_iceberg:
            return len(list(iceberg_catalog(self.url).load_table(table).scan().plan_files()))
        return len(DeltaTable(str(self.folder / table.replace(".", "/"))).file_uris())


def reasons(done: dg.ExecuteInProcessResult) -> list[str]:
    """Why tables were copied in a run."""
    assert done.success
    metadata = [each.materialization.metadata for each in done.get_asset_materialization_events()]
    assert metadata
    return [str(x["pgque/copied_because"].value) for x in metadata if "pgque/copied_because" in x]


def is_replica(asset: Any, name: str) -> bool:
    return isinstance(asset, dg.AssetsDefinition) and asset.op.name == f"{name}_replicas"


lakes = pytest.mark.parametrize("target", [DeltaReplicas, IcebergReplicas])
delta = pytest.mark.parametrize("target", [DeltaReplicas])
