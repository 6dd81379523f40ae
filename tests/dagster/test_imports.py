"""What is heavy is loaded when it is used, so that code servers and runs start soon."""

import json
import re
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


@pytest.mark.parametrize(
    ("module", "name", "missing", "extras"),
    [
        ("pgque_dagster", "PgqueResource", "dagster", "spark,dagster"),
        ("pgque_dagster", "pgque_asset", "dagster", "spark,dagster"),
        ("pgque_dagster", "PgqueComponent", "dagster", "spark,dagster"),
        ("pgque_dagster", "SparkBatch", "pyspark", "spark,dagster"),
        ("pgque_dagster.spark", "DeltaSink", "pyspark", "spark"),
        ("pgque_dagster.spark", "DeltaSink", "pyarrow", "spark"),
    ],
)
def test_without_an_extra_the_import_says_how_to_install_it(
    module: str, name: str, missing: str, extras: str
) -> None:
    program = f"import sys\nsys.modules['{missing}'] = None\nfrom {module} import {name}"
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert re.search(
        rf"ModuleNotFoundError: No module named '{missing}[\w.]*', which {name} needs: "
        rf"run `pip install 'pgque-dagster\[{extras}\]'`$",
        failed.stderr.strip(),
    )
