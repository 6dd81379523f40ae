"""Replicas of captured tables: what Delta and PostgreSQL share, and those in PostgreSQL."""
