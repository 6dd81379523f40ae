"""Tests the asset `revenue` on batches made of rows; no server is needed."""

from collections.abc import Iterator

import pytest
from pgque_dagster import batch_from_rows
from pgque_dagster.spark import JavaMissing, check_java
from pyspark.sql import SparkSession

from shop.defs.revenue.transform import revenue


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests."""
    try:
        check_java()
    except JavaMissing as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1)
    with builder.getOrCreate() as session:
        yield session


def test_totals_are_summed_by_product(spark: SparkSession) -> None:
    rows = [
        {"product": "tea", "total": 4.5},
        {"product": "milk", "total": 2.0},
        {"product": "tea", "total": 1.5},
    ]

    computed = revenue(batch_from_rows(spark, rows)).collect()

    assert sorted(computed) == [("milk", 2.0), ("tea", 6.0)]


def test_an_event_without_a_total_becomes_a_dead_letter(spark: SparkSession) -> None:
    batch = batch_from_rows(spark, [{"product": "tea", "total": 4.5}, {"product": "tea"}])

    assert revenue(batch).collect() == [("tea", 4.5)]
    assert batch.claim.requested.dead_lettered == 1
