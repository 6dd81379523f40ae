"""What is heavy is loaded when it is used, so that code servers and runs start soon."""

import json
import subprocess
import sys

import pytest

LOCATION = """
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import (
    ParquetBatchIOManager, PgqueResource, build_pgque_sensor, build_queue_assets, pgque_asset
)

@pgque_asset(queue="orders")
def revenue(batch):
    return batch.payload("total double not null")

dg.Definitions(
    assets=[*build_queue_assets("orders", consumers=[revenue]), revenue],
    sensors=[build_pgque_sensor([revenue])],
    resources={
        "pgque": PgqueResource(queues=["orders"]),
        "pyspark": LazyPySparkResource(spark_config={}),
        "io_manager": ParquetBatchIOManager(base_dir="output"),
    },
).get_repository_def()
"""
TABLES = {"deltalake", "obstore", "pyiceberg"}
READING = {"adbc_driver_manager", "msgspec", "numpy", "pandas", "pyarrow"}


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        ("import pgque_dagster", {"dagster", "psycopg", "pyspark", *TABLES, *READING}),
        (LOCATION, TABLES | READING),
    ],
    ids=["the package", "a code location"],
)
def test_what_is_not_used_is_not_loaded(program: str, heavy: set[str]) -> None:
    loaded = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", loaded], check=True, capture_output=True, text=True
    ).stdout

    assert heavy & set(json.loads(output)) == set()
