"""Replicas of tables in Dagster: one asset per table."""

from ..client.replicas.postgres.location import PostgresReplicas
from ..client.replicas.spec import TableSpec
from ..spark.replicas.location import DeltaReplicas, IcebergReplicas
from .definitions import build_table_replicas

__all__ = [
    "DeltaReplicas",
    "IcebergReplicas",
    "PostgresReplicas",
    "TableSpec",
    "build_table_replicas",
]
