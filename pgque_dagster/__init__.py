"""PgQue for Dagster: a PostgreSQL queue whose batches become Spark-computed assets.

The names below are loaded on first use, so that importing `pgque_dagster.client` loads neither
Dagster nor Spark.
"""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .missing_modules import naming_extras

if TYPE_CHECKING:
    from .assets import (
        DeltaBatchIOManager,
        IcebergBatchIOManager,
        ParquetBatchIOManager,
        PostgresBatchIOManager,
        pgque_asset,
        pgque_multi_asset,
        pgque_window_asset,
    )
    from .checks import (
        Alert,
        build_consumer_lag_checks,
        build_dead_letter_checks,
        build_pgque_alerts,
        build_queue_health_checks,
    )
    from .components import (
        BatchConsumerComponent,
        PgqueComponent,
        QueueComponent,
        TableReplicaComponent,
        WindowComponent,
    )
    from .embedded import EmbeddedPostgres
    from .jobs import (
        build_delta_maintenance_job,
        build_iceberg_maintenance_job,
        build_pgque_jobs,
    )
    from .project.keys import dead_letters_key, queue_key
    from .project.lineage import build_queue_assets
    from .project.resource import PgqueResource
    from .replicas import DeltaReplicas, PostgresReplicas, build_table_replicas
    from .sensors import (
        build_pgque_observation_sensor,
        build_pgque_schedule,
        build_pgque_sensor,
        build_pgque_ticker_sensor,
    )
    from .spark import SparkBatch

# Loaded on first use, too: an executor to which the package is shipped has no metadata of it.
__version__: str

__all__ = [
    "Alert",
    "BatchConsumerComponent",
    "DeltaBatchIOManager",
    "DeltaReplicas",
    "EmbeddedPostgres",
    "IcebergBatchIOManager",
    "ParquetBatchIOManager",
    "PgqueComponent",
    "PgqueResource",
    "PostgresBatchIOManager",
    "PostgresReplicas",
    "QueueComponent",
    "SparkBatch",
    "TableReplicaComponent",
    "WindowComponent",
    "__version__",
    "build_consumer_lag_checks",
    "build_dead_letter_checks",
    "build_delta_maintenance_job",
    "build_iceberg_maintenance_job",
    "build_pgque_alerts",
    "build_pgque_jobs",
    "build_pgque_observation_sensor",
    "build_pgque_schedule",
    "build_pgque_sensor",
    "build_pgque_ticker_sensor",
    "build_queue_assets",
    "build_queue_health_checks",
    "build_table_replicas",
    "dead_letters_key",
    "pgque_asset",
    "pgque_multi_asset",
    "pgque_window_asset",
    "queue_key",
]

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
    "build_delta_maintenance_job": "jobs",
    "build_iceberg_maintenance_job": "jobs",
    "build_pgque_alerts": "checks",
    "build_pgque_jobs": "jobs",
    "build_pgque_observation_sensor": "sensors",
    "build_pgque_schedule": "sensors",
    "build_pgque_sensor": "sensors",
    "build_pgque_ticker_sensor": "sensors",
    "build_queue_assets": "project.lineage",
    "build_queue_health_checks": "checks",
    "build_table_replicas": "replicas",
    "dead_letters_key": "project.keys",
    "pgque_asset": "assets",
    "pgque_multi_asset": "assets",
    "pgque_window_asset": "assets",
    "queue_key": "project.keys",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("pgque-dagster")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extras(name, "spark,dagster"):
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names if Dagster and Spark are installed; Dagster searches them for components."""
    found = all(find_spec(package) for package in ("dagster", "dagster_pyspark", "pyspark"))
    return [*globals(), *(__all__ if found else ())]
