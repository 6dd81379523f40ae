"""Replicas of tables in Dagster: one asset a table."""

from ..client.replicas.postgres import PostgresReplicas
from ..client.table_spec import TableSpec
from ..spark.replicas.target import DeltaReplicas, IcebergReplicas
from .definitions import build_table_replicas

__all__ = [
    "DeltaReplicas",
    "IcebergReplicas",
    "PostgresReplicas",
    "TableSpec",
    "build_table_replicas",
]
