"""Runs pgbench's bank, has Dagster and Spark keep its balances, and compares them with its books.

`python -m demo`, or `make demo`. docs/architecture.md names the parts that it shows at work.
"""
