"""Replicas of tables in Dagster: one asset a table."""

from .definitions import build_table_replicas

__all__ = ["build_table_replicas"]
