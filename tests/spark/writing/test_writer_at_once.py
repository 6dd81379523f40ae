"""Two writes to one queue at the same time: each is sent as a whole, or not at all."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import register
from tests.spark.writing.test_writer import sent, staging_tables

ROWS = 5_000
PATIENCE_SECONDS = 120


def rows(spark: SparkSession, first: int, midway: Callable[[], None]) -> DataFrame:
    """One partition of numbers; in the middle of it something happens."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch[:half]
            midway()
            yield batch[half:]

    numbers = spark.range(first, first + ROWS, numPartitions=1).selectExpr("string(id) as data")
    return numbers.mapInArrow(pass_on, "data string")


def meeting(here: Path, there: Path) -> Callable[[], None]:
    """Waits until the other write is in its middle, too."""

    def meet() -> None:
        here.touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not there.exists():
            assert time.monotonic() < deadline, "the other write does not come"
            time.sleep(0.05)

    return meet


def failing(meet: Callable[[], None]) -> Callable[[], None]:
    def fail() -> None:
        meet()
        raise RuntimeError("killed in the middle")

    return fail


def publish(client: Client, frame: DataFrame) -> None:
    register(frame.sparkSession)
    frame.write.format("pgque").options(url=client.url, queue="orders").mode("append").save()


def test_two_writes_at_once_are_both_sent(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    frames = [rows(spark, 0, meeting(one, other)), rows(spark, ROWS, meeting(other, one))]

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda frame: publish(client, frame), frames))

    assert sorted(int(event.payload or "") for event in sent(client)) == list(range(2 * ROWS))
    assert staging_tables(client) == []


def test_a_write_that_fails_takes_nothing_of_another_at_the_same_time(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"

    with ThreadPoolExecutor(2) as threads:
        failed = threads.submit(publish, client, rows(spark, 0, failing(meeting(one, other))))
        threads.submit(publish, client, rows(spark, ROWS, meeting(other, one))).result()
        with pytest.raises(PySparkException, match="killed in the middle"):
            failed.result()

    events = sorted(int(event.payload or "") for event in sent(client))
    assert events == list(range(ROWS, 2 * ROWS))
