"""A Spark driver in a process of its own that reads the corpus of payloads.

    python -m tests.support.payload_driver MASTER CONF STORY URL FOLDER

Each schema of `payload_batches` has a queue of its name, with the consumers driver, executors,
stream and micro_batches. STORY is read_corpus. Prints by schema and way how many events were read,
and what was read wrong.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch, parse_payloads, register
from pgque_dagster.spark import batch as batch_module
from tests.spark.payload.payload_batches import SCHEMA_NAMES, SCHEMAS, read_batch, wrong
from tests.support.cluster_driver import PATIENCE_SECONDS, open_session, store_stream
from tests.support.events import claim

WAYS = ("driver", "executors", "stream", "micro_batches")


def read_corpus(spark: SparkSession, url: str, folder: Path) -> dict[str, Any]:
    """Reads the queues in all ways."""
    register(spark)
    report = {}
    with Client(url) as client:
        for queue, (schema, some) in zip(SCHEMA_NAMES, SCHEMAS, strict=True):
            ids = json.loads((folder / f"{queue}.json").read_text())
            expected = dict(zip(ids, some, strict=True))
            for way in WAYS:
                rows = _read(spark, client, queue, way, schema, folder / f"{queue}-{way}")
                report[f"{queue} {way}"] = [len(rows), wrong(rows, expected)]
    return report


def _read(
    spark: SparkSession, client: Client, queue: str, way: str, schema: t.StructType, folder: Path
) -> list[dict[str, Any]]:
    folder.mkdir()
    if way in ("stream", "micro_batches"):
        options = {"url": client.url, "queue": queue, "consumer": way}
        events = spark.readStream.format("pgque").options(**options).load()
        store = _store_parsed if way == "stream" else _store_micro_batches
        store(events, schema, folder)
        return spark.read.parquet(str(folder / "streamed")).toArrow().to_pylist()
    batch_module.DRIVER_SIDE_EVENTS = 20_000 if way == "driver" else -1
    return read_batch(client, SparkBatch(spark, claim(client, queue, way), client.url), schema)


def _store_parsed(events: DataFrame, schema: t.StructType, folder: Path) -> None:
    store_stream(parse_payloads(events, schema, keep=["ev_id"], on_malformed="keep"), folder)


def _store_micro_batches(events: DataFrame, schema: t.StructType, folder: Path) -> None:
    query = (
        events.writeStream.foreachBatch(_storing(schema, str(folder / "streamed")))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"


def _storing(schema: t.StructType, target: str) -> Callable[[DataFrame, int], None]:
    # A Connect server runs this, and has not the tests: the function must travel by itself.
    def store(events: DataFrame, number: int) -> None:
        parsed = parse_payloads(events, schema, keep=["ev_id"], on_malformed="keep")
        parsed.write.mode("append").parquet(target)

    return store


def main(master: str, conf: str, story: str, url: str, folder: str) -> None:
    assert story == "read_corpus"
    spark = open_session(master, json.loads(conf))
    print(json.dumps(read_corpus(spark, url, Path(folder))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
