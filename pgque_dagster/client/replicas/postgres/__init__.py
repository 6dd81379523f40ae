"""Replicas of tables in PostgreSQL, without Spark or Dagster."""
