"""A Spark driver in a process of its own that reads the corpus of payloads.

    python -m tests.support.payload_driver MASTER CONF STORY URL FOLDER

The queue orders has the cases of `SCHEMAS[0]`, and a consumer for each of `WAYS`. STORY is
read_corpus. Prints by way how many events were read, and what was read wrong.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch, parse_payloads, register
from pgque_dagster.spark import batch as batch_module
from tests.spark.payload.payload_batches import SCHEMAS, read_batch, wrong
from tests.support.cluster_driver import PATIENCE_SECONDS, open_session, store_stream
from tests.support.events import claim

WAYS = ("driver", "executors", "stream", "micro_batches")
SCHEMA, CASES = SCHEMAS[0]


def read_corpus(spark: SparkSession, client: Client, way: str, folder: Path) -> list[Any]:
    """The rows, as one of the ways reads them."""
    if way in ("driver", "executors"):
        batch_module.DRIVER_SIDE_EVENTS = 20_000 if way == "driver" else -1
        batch = SparkBatch(spark, claim(client, consumer=way), client.url)
        return read_batch(client, batch, SCHEMA)
    folder.mkdir()
    options = {"url": client.url, "queue": "orders", "consumer": way}
    events = spark.readStream.format("pgque").options(**options).load()
    if way == "stream":
        store_stream(parse_payloads(events, SCHEMA, keep=["ev_id"], on_malformed="keep"), folder)
    else:
        query = (
            events.writeStream.foreachBatch(_storing(str(folder / "streamed")))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
    return spark.read.parquet(str(folder / "streamed")).toArrow().to_pylist()


def _storing(target: str) -> Callable[[DataFrame, int], None]:
    # A Connect server runs this, and has not the tests: the function must travel by itself.
    schema, parse = SCHEMA, parse_payloads

    def store(events: DataFrame, number: int) -> None:
        parsed = parse(events, schema, keep=["ev_id"], on_malformed="keep")
        parsed.write.mode("append").parquet(target)

    return store


def main(master: str, conf: str, story: str, url: str, folder: str) -> None:
    assert story == "read_corpus"
    spark = open_session(master, json.loads(conf))
    register(spark)
    ids = json.loads(Path(folder, "ids.json").read_text())
    expected = dict(zip(ids, CASES, strict=True))
    with Client(url) as client:
        found = {way: read_corpus(spark, client, way, Path(folder, way)) for way in WAYS}
    report = {way: [len(rows), wrong(rows, expected)] for way, rows in found.items()}
    print(json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
