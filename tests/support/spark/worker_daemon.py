"""Forks the Python workers of Spark from a process that has imported what their tasks need.

A worker imports for a second of processor time, and lives until a task fails in it, or a minute
without tasks. Spark itself imports nothing before it forks, because imports may start threads.
"""

import gc
import sys
from importlib import import_module
from pathlib import Path

# Spark puts archives before the installed code, which each task opens again: of the same code, not
# compiled, and of Java classes.
sys.path[:] = [place for place in sys.path if not Path(place).is_file()]
sys.path_importer_cache.clear()

for name in (
    "adbc_driver_postgresql.dbapi",
    "pgque_dagster.spark.replicas",
    "pgque_dagster.spark.sinks.iceberg",
    "pyspark.worker",
):
    import_module(name)

# Spark collects garbage after each task.
gc.freeze()
import_module("pyspark.daemon").manager()
