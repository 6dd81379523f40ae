"""Runs pgbench's bank, computes its balances with Dagster and Spark, and compares the two.

Run `python -m demo` or `make demo`. docs/architecture.md describes the parts that it uses.
"""
