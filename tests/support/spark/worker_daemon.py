"""Forks the Python workers of Spark from a process that has imported what their tasks need.

A worker imports for a second of processor time, and lives until a task fails in it, or a minute
without tasks. Spark itself imports nothing before it forks, because imports may start threads.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

for name in (
    "adbc_driver_postgresql.dbapi",
    "pgque_dagster.spark.replicas",
    "pgque_dagster.spark.sinks.iceberg",
    "pyspark.worker",
):
    import_module(name)

# Spark collects garbage after each task.
gc.freeze()
manager()
