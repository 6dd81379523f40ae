"""Copies of PostgreSQL's tables in the lake, which follow every change: docs/replicas.md."""
