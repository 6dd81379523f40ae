"""A Spark driver that uses a database in all ways, and keeps whatever Spark shows of it.

    python -m tests.programs.spark_secrets MASTER CONF WAYS URL FOLDER

WAYS are ways to tell where the database is, with commas between: `url`, which is the argument;
`url_env`, the variable `PGQUE_SECRET_URL`; `url_file`, the file `url` in the folder `PGQUE_FILES`.
For each of them there is an address besides where nobody answers. The file `s3` in that folder has
the options of an object store.
"""

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from pgque_dagster.client import Client
from pgque_dagster.client.batch import read_plan
from pgque_dagster.spark import (
    DatabaseAddress,
    DeltaSink,
    IcebergSink,
    ParquetSink,
    PostgresSink,
    SparkBatch,
    register,
)
from pgque_dagster.spark import batch as batch_module
from pgque_dagster.spark.cluster.executor_errors import executor_error
from pgque_dagster.spark.reading.arrow import read_slices
from tests.programs.spark_cluster import PATIENCE_SECONDS, SCHEMA, open_session, store_stream

_PAGES = ("environment/", "executors/", "jobs/", "stages/", "SQL/", "StreamingQuery/")
_API = ("jobs", "stages", "environment", "allexecutors", "storage/rdd")
_QUERIES = "sql?details=true&planDescription=true&length=1000"


def addresses(way: str, url: str) -> tuple[DatabaseAddress, DatabaseAddress]:
    """Where the database is, and where nobody answers."""
    if way == "url_env":
        return (
            DatabaseAddress(url_env="PGQUE_SECRET_URL"),
            DatabaseAddress(url_env="PGQUE_SECRET_UNREACHABLE"),
        )
    if way == "url_file":
        files = os.environ["PGQUE_FILES"]
        return (
            DatabaseAddress(url_file=f"{files}/url"),
            DatabaseAddress(url_file=f"{files}/unreachable"),
        )
    return DatabaseAddress(url), DatabaseAddress(nobody(url))


def nobody(url: str) -> str:
    """The same on a port where nobody answers."""
    return re.sub(r":\d+/", ":1/", url)


def use(spark: SparkSession, ways: list[str], way: str, url: str, folder: Path) -> None:
    """Reads, writes, keeps and streams, and fails to; the first way does all of it."""
    register(spark)
    address, unreachable = addresses(way, url)
    options = address.options()
    with Client(address.resolve()) as client:
        claimed = client.claim("orders", way, owner="a driver")
        assert claimed is not None
        with claimed.keep_alive():
            batch = SparkBatch(spark, claimed, client.url, address=address)
            if is_remote():
                _fail(lambda: SparkBatch(spark, claimed, client.url))
            orders = batch.payload(SCHEMA)
            reader = spark.read.format("pgque").options(**options)
            _show(orders, "extended")
            _show(batch.events(), "extended", "formatted", "cost")
            _show(reader.load(batch_id=str(batch.batch_id)), "extended", "formatted", "cost")
            totals = orders.groupBy("account").sum("amount").toDF("account", "amount")
            PostgresSink("balance", key=["account"], mode="add").write(batch, totals)
            PostgresSink("balance", key=["account"], mode="add", url=address).write(batch, totals)
            ParquetSink(folder / "tables" / way).write(batch, totals)
            _fail(lambda: PostgresSink("balance", url=unreachable).write(batch, totals))
            if way == ways[0]:
                _keep_in_s3(batch, totals)
                _fail_to_keep(batch, totals, address)
            rows = orders.selectExpr("account as data")
            rows.write.format("pgque").options(**options, queue="published").mode("append").save()
            slices = read_plan(claimed, 2).slices
            claimed.ack()
    _stream(spark, {**options, "queue": "orders", "consumer": f"{way}_stream"}, folder / way)
    nobody = spark.read.format("pgque").options(**unreachable.options(), batch_id="1")
    _fail(nobody.load().collect)
    _fail(read_slices(spark, unreachable, slices, ["ev_data"]).collect)


def _fail_to_keep(batch: SparkBatch, rows: DataFrame, address: DatabaseAddress) -> None:
    """Fails in Spark's work, in COPY and in the merge."""
    sink = PostgresSink("balance", url=address)
    write = sink.foreach_batch(query="a driver")
    for account, amount in (
        ("string(raise_error('bad rows'))", "amount"),
        ("'a\\0b'", "amount"),
        ("account", "nullif(amount, amount)"),
    ):
        failing = rows.selectExpr(f"{account} as account", f"{amount} as amount")
        failing.explain(mode="extended")
        _fail(partial(write, failing, 0))
    print(sink, batch, address)


def _keep_in_s3(batch: SparkBatch, rows: DataFrame) -> None:
    """Stores tables in an object store, and fails to, with credentials that are passed."""
    options = json.loads(Path(os.environ["PGQUE_FILES"], "s3").read_text())
    for bucket in ("lake", "missing"):
        delta = DeltaSink(f"s3://{bucket}/delta", storage_options=options)
        iceberg = IcebergSink(f"{bucket}.t", warehouse=f"s3://{bucket}/t", storage_options=options)
        for sink in (delta, iceberg):
            if bucket == "missing":
                _fail(partial(sink.write, batch, rows))
            else:
                print(sink.write(batch, rows), sink)
        if bucket == "lake":
            _show(delta.read(batch.spark), "extended", "formatted", "cost")


def _show(frame: DataFrame, *modes: str) -> None:
    for mode in modes:
        frame.explain(mode=mode)
    frame.count()


def _stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    events = spark.readStream.format("pgque").options(**options).load()
    query = store_stream(events, folder)
    query.explain(extended=True)
    print(query.lastProgress, query.status)


def _fail(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception as error:
        print(error, executor_error(error))
    else:
        raise AssertionError("it did not fail")


def _keep_ui(base: str, folder: Path) -> None:
    """Keeps what the user interface and its REST API show."""
    applications = f"{base}/api/v1/applications"
    (application,) = json.loads(_fetch(applications))
    api = f"{applications}/{application['id']}"
    queries = _fetch(f"{api}/{_QUERIES}")
    pages = [*(f"{base}/{page}" for page in _PAGES), *(f"{api}/{name}" for name in _API)]
    if is_remote():
        pages.append(f"{base}/connect/")
    pages += [f"{base}/SQL/execution/?id={query['id']}" for query in json.loads(queries)]
    shown = [queries, *map(_fetch, pages)]
    (folder / "ui.txt").write_text("\n".join(shown))


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def main(master: str, conf: str, ways: str, url: str, folder: str) -> None:
    spark = open_session(master, json.loads(conf))
    batch_module.DRIVER_SIDE_EVENTS = -1
    with (Path(folder) / "said.txt").open("w") as said, redirect_stdout(said):
        for way in ways.split(","):
            use(spark, ways.split(","), way, url, Path(folder))
        ui = os.environ.get("PGQUE_UI") or spark.sparkContext.uiWebUrl
        assert ui is not None
        _keep_ui(ui, Path(folder))
    spark.stop()
    print(json.dumps({"ways": ways}))


if __name__ == "__main__":
    main(*sys.argv[1:])
