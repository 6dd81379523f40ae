"""Replicas of tables in Dagster: one asset a table."""

from ..client.replicas.postgres import PostgresReplicas
from .definitions import build_table_replicas
from .targets import DeltaReplicas

__all__ = ["DeltaReplicas", "PostgresReplicas", "build_table_replicas"]
