"""PgQue for Dagster: a PostgreSQL queue whose batches become Spark-computed assets.

The names below are loaded on first use, so that importing `pgque_dagster.client` loads neither
Dagster nor Spark.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .lazy_names import lazily

if TYPE_CHECKING:
    from .assets.decorators import pgque_asset as pgque_asset
    from .assets.decorators import pgque_multi_asset as pgque_multi_asset
    from .assets.io_managers import ParquetBatchIOManager as ParquetBatchIOManager
    from .assets.io_managers import PostgresBatchIOManager as PostgresBatchIOManager
    from .assets.lake_io_managers import DeltaBatchIOManager as DeltaBatchIOManager
    from .assets.lake_io_managers import IcebergBatchIOManager as IcebergBatchIOManager
    from .checks.alerts import Alert as Alert
    from .checks.alerts import build_pgque_alerts as build_pgque_alerts
    from .checks.dead_letters import build_dead_letter_checks as build_dead_letter_checks
    from .checks.health import build_queue_health_checks as build_queue_health_checks
    from .checks.lag import build_consumer_lag_checks as build_consumer_lag_checks
    from .components import BatchConsumerComponent as BatchConsumerComponent
    from .components import PgqueComponent as PgqueComponent
    from .components import QueueComponent as QueueComponent
    from .components import TableReplicaComponent as TableReplicaComponent
    from .components import WindowComponent as WindowComponent
    from .embedded import EmbeddedPostgres as EmbeddedPostgres
    from .jobs.queue_jobs import build_pgque_jobs as build_pgque_jobs
    from .jobs.table_jobs import build_table_maintenance_job as build_table_maintenance_job
    from .project.database import dead_letters_key as dead_letters_key
    from .project.database import queue_key as queue_key
    from .project.lineage import build_queue_assets as build_queue_assets
    from .project.resource import PgqueResource as PgqueResource
    from .replicas import DeltaReplicas as DeltaReplicas
    from .replicas import IcebergReplicas as IcebergReplicas
    from .replicas import PostgresReplicas as PostgresReplicas
    from .replicas import TableSpec as TableSpec
    from .replicas import build_table_replicas as build_table_replicas
    from .sensors.batch_schedule import build_pgque_schedule as build_pgque_schedule
    from .sensors.batch_sensor import build_pgque_sensor as build_pgque_sensor
    from .sensors.observation import (
        build_pgque_observation_sensor as build_pgque_observation_sensor,
    )
    from .sensors.ticker_sensor import build_pgque_ticker_sensor as build_pgque_ticker_sensor
    from .spark import SparkBatch as SparkBatch
    from .spark import batch_from_rows as batch_from_rows

# Loaded on first use, too: an executor with a shipped package lacks the package's metadata.
__version__: str

_MODULES = {
    "Alert": "checks.alerts",
    "BatchConsumerComponent": "components",
    "DeltaBatchIOManager": "assets.lake_io_managers",
    "DeltaReplicas": "replicas",
    "EmbeddedPostgres": "embedded",
    "IcebergBatchIOManager": "assets.lake_io_managers",
    "IcebergReplicas": "replicas",
    "ParquetBatchIOManager": "assets.io_managers",
    "PgqueComponent": "components",
    "PgqueResource": "project.resource",
    "PostgresBatchIOManager": "assets.io_managers",
    "PostgresReplicas": "replicas",
    "QueueComponent": "components",
    "SparkBatch": "spark",
    "TableReplicaComponent": "components",
    "TableSpec": "replicas",
    "WindowComponent": "components",
    "batch_from_rows": "spark",
    "build_consumer_lag_checks": "checks.lag",
    "build_dead_letter_checks": "checks.dead_letters",
    "build_pgque_alerts": "checks.alerts",
    "build_pgque_jobs": "jobs.queue_jobs",
    "build_pgque_observation_sensor": "sensors.observation",
    "build_pgque_schedule": "sensors.batch_schedule",
    "build_pgque_sensor": "sensors.batch_sensor",
    "build_pgque_ticker_sensor": "sensors.ticker_sensor",
    "build_queue_assets": "project.lineage",
    "build_queue_health_checks": "checks.health",
    "build_table_maintenance_job": "jobs.table_jobs",
    "build_table_replicas": "replicas",
    "dead_letters_key": "project.database",
    "pgque_asset": "assets.decorators",
    "pgque_multi_asset": "assets.decorators",
    "queue_key": "project.database",
}

__all__ = ["__version__", *_MODULES]

_load = lazily(__name__, _MODULES, "spark,dagster")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("pgque-dagster")
    return _load(name)


def __dir__() -> list[str]:
    """Lists the names if Dagster and Spark are installed; Dagster searches them for components."""
    found = all(find_spec(package) for package in ("dagster", "dagster_pyspark", "pyspark"))
    return [*globals(), *(__all__ if found else ())]
