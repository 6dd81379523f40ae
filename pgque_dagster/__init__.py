"""PgQue for Dagster: a PostgreSQL queue whose batches become Spark-computed assets.

The names for Dagster are found on first use, so that `pgque_dagster.client` needs neither Dagster
nor Spark.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assets import pgque_asset
    from .checks import build_dead_letter_checks
    from .embedded import EmbeddedPostgres
    from .io_managers import ParquetBatchIOManager
    from .lineage import build_queue_assets, dead_letters_key, queue_key
    from .resources import PgqueResource
    from .sensors import build_pgque_sensor
    from .spark import SparkBatch

__version__ = version("pgque-dagster")

__all__ = [
    "EmbeddedPostgres",
    "ParquetBatchIOManager",
    "PgqueResource",
    "SparkBatch",
    "__version__",
    "build_dead_letter_checks",
    "build_pgque_sensor",
    "build_queue_assets",
    "dead_letters_key",
    "pgque_asset",
    "queue_key",
]

_MODULES = {
    "EmbeddedPostgres": "embedded",
    "ParquetBatchIOManager": "io_managers",
    "PgqueResource": "resources",
    "SparkBatch": "spark",
    "build_dead_letter_checks": "checks",
    "build_pgque_sensor": "sensors",
    "build_queue_assets": "lineage",
    "dead_letters_key": "lineage",
    "pgque_asset": "assets",
    "queue_key": "lineage",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
