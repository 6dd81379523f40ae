"""PgQue for Dagster: a PostgreSQL queue whose batches become Spark-computed assets.

The names below are loaded on first use, so that importing `pgque_dagster.client` loads neither
Dagster nor Spark.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .lazy_names import lazily

if TYPE_CHECKING:
    from .assets import DeltaBatchIOManager as DeltaBatchIOManager
    from .assets import IcebergBatchIOManager as IcebergBatchIOManager
    from .assets import ParquetBatchIOManager as ParquetBatchIOManager
    from .assets import PostgresBatchIOManager as PostgresBatchIOManager
    from .assets import pgque_asset as pgque_asset
    from .assets import pgque_multi_asset as pgque_multi_asset
    from .checks import Alert as Alert
    from .checks import build_consumer_lag_checks as build_consumer_lag_checks
    from .checks import build_dead_letter_checks as build_dead_letter_checks
    from .checks import build_pgque_alerts as build_pgque_alerts
    from .checks import build_queue_health_checks as build_queue_health_checks
    from .components import BatchConsumerComponent as BatchConsumerComponent
    from .components import PgqueComponent as PgqueComponent
    from .components import QueueComponent as QueueComponent
    from .components import TableReplicaComponent as TableReplicaComponent
    from .components import WindowComponent as WindowComponent
    from .embedded import EmbeddedPostgres as EmbeddedPostgres
    from .jobs import build_pgque_jobs as build_pgque_jobs
    from .jobs import build_table_maintenance_job as build_table_maintenance_job
    from .project.keys import dead_letters_key as dead_letters_key
    from .project.keys import queue_key as queue_key
    from .project.lineage import build_queue_assets as build_queue_assets
    from .project.resource import PgqueResource as PgqueResource
    from .replicas import DeltaReplicas as DeltaReplicas
    from .replicas import PostgresReplicas as PostgresReplicas
    from .replicas import build_table_replicas as build_table_replicas
    from .sensors import build_pgque_observation_sensor as build_pgque_observation_sensor
    from .sensors import build_pgque_schedule as build_pgque_schedule
    from .sensors import build_pgque_sensor as build_pgque_sensor
    from .sensors import build_pgque_ticker_sensor as build_pgque_ticker_sensor
    from .spark import SparkBatch as SparkBatch

# Loaded on first use, too: an executor to which the package is shipped has no metadata of it.
__version__: str

_MODULES = {
    "Alert": "checks",
    "BatchConsumerComponent": "components",
    "DeltaBatchIOManager": "assets",
    "DeltaReplicas": "replicas",
    "EmbeddedPostgres": "embedded",
    "IcebergBatchIOManager": "assets",
    "ParquetBatchIOManager": "assets",
    "PgqueComponent": "components",
    "PgqueResource": "project.resource",
    "PostgresBatchIOManager": "assets",
    "PostgresReplicas": "replicas",
    "QueueComponent": "components",
    "SparkBatch": "spark",
    "TableReplicaComponent": "components",
    "WindowComponent": "components",
    "build_consumer_lag_checks": "checks",
    "build_dead_letter_checks": "checks",
    "build_pgque_alerts": "checks",
    "build_pgque_jobs": "jobs",
    "build_pgque_observation_sensor": "sensors",
    "build_pgque_schedule": "sensors",
    "build_pgque_sensor": "sensors",
    "build_pgque_ticker_sensor": "sensors",
    "build_queue_assets": "project.lineage",
    "build_queue_health_checks": "checks",
    "build_table_maintenance_job": "jobs",
    "build_table_replicas": "replicas",
    "dead_letters_key": "project.keys",
    "pgque_asset": "assets",
    "pgque_multi_asset": "assets",
    "queue_key": "project.keys",
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
