"""Replicas of captured tables: what Delta and PostgreSQL share, and replicas in PostgreSQL."""
