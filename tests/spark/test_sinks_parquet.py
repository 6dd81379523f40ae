"""Batches as Parquet: each once, however often it is written."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.spark.sinks import ParquetSink


@pytest.fixture(params=["path", "url"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory, and one that Spark is given as a URL, as stores without rename are."""
    folder = tmp_path / "with space"
    return str(folder) if request.param == "path" else f"file://{folder}"


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count)


def stored(sink: ParquetSink, spark: SparkSession) -> list[tuple[int, int]]:
    return sorted((row.batch_id, row.id) for row in sink.read(spark).collect())


def test_all_batches_are_one_table(location: str, spark: SparkSession) -> None:
    sink = ParquetSink(location)

    sink.write(7, numbers(spark, 2))
    sink.write(12, numbers(spark, 1))

    assert stored(sink, spark) == [(7, 0), (7, 1), (12, 0)]


def test_writing_a_batch_again_replaces_it(location: str, spark: SparkSession) -> None:
    sink = ParquetSink(location)

    sink.write(1, numbers(spark, 3))
    sink.write(12, numbers(spark, 1))
    sink.write(1, numbers(spark, 2))

    assert stored(sink, spark) == [(1, 0), (1, 1), (12, 0)]


def test_a_write_that_fails_leaves_the_batch_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    sink = ParquetSink(tmp_path)
    sink.write(1, numbers(spark, 2))

    with pytest.raises(PySparkException, match="no good"):
        raising = f.raise_error(f.lit("no good")).cast("bigint")
        sink.write(1, numbers(spark, 5).select(raising.alias("id")))

    assert stored(sink, spark) == [(1, 0), (1, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["batch_id=1"]


def test_what_a_killed_attempt_left_is_not_read_and_goes_with_the_next(
    tmp_path: Path, spark: SparkSession
) -> None:
    sink = ParquetSink(tmp_path)
    sink.write(1, numbers(spark, 2))
    (tmp_path / "batch_id=1").rename(tmp_path / ".old.batch_id=1.aa")
    sink.write(2, numbers(spark, 1))
    assert stored(sink, spark) == [(2, 0)]

    sink.write(1, numbers(spark, 2))

    assert stored(sink, spark) == [(1, 0), (1, 1), (2, 0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch_id=1", "batch_id=2"]


def test_an_empty_batch_is_a_batch(location: str, spark: SparkSession) -> None:
    sink = ParquetSink(location)

    sink.write(1, numbers(spark, 0))

    assert stored(sink, spark) == []
