"""Replicates pgbench's bank into Delta with Dagster and Spark, and compares the two.

Run `python -m demo` or `make demo`. docs/replicas.md describes replicas.
"""
