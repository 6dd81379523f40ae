"""What fails on an executor reaches the driver as the error that it is."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, ConnectionFailed, StaleReadPlan
from pgque_dagster.client.batch import read_plan
from pgque_dagster.client.connection import connect
from pgque_dagster.client.errors import DatabaseError, passes, translated
from pgque_dagster.client.models import Slice
from pgque_dagster.spark import DatabaseAddress, PackageMissing, clear_executor_errors, register
from pgque_dagster.spark.reading.arrow import read_slices
from tests.support.queues.events import claim, publish


def count(spark: SparkSession, **options: str) -> int:
    register(spark)
    return spark.read.format("pgque").options(**options).load().count()


def read(spark: SparkSession, url: str, part: Slice) -> None:
    read_slices(spark, DatabaseAddress(url), [part], ["ev_id"]).collect()


def test_an_error_of_planning_comes_by_its_name_and_in_one_line(
    database_url: str, spark: SparkSession
) -> None:
    with pytest.raises(BatchNotOpen) as raised, clear_executor_errors():
        count(spark, url=database_url, batch_id="4711")

    assert str(raised.value).startswith("batch not found: batch 4711 is not open. It")
    assert "\n" not in str(raised.value)
    assert raised.value.__suppress_context__
    with pytest.raises(BatchNotOpen) as again, clear_executor_errors():
        raise raised.value
    assert again.value is raised.value


def test_an_error_of_an_executor_comes_by_its_name(client: Client, spark: SparkSession) -> None:
    publish(client, ["payload"])
    (part,) = read_plan(claim(client), 1).slices
    stale = replace(part, rows=part.rows[: part.rows.rindex(",")] + ", 1)")

    with pytest.raises(StaleReadPlan, match="truncated or rewritten"), clear_executor_errors():
        read(spark, client.url, stale)
    nowhere = "postgresql://me:s3cret@127.0.0.1:1/x"
    with pytest.raises(ConnectionFailed) as raised, clear_executor_errors():
        read(spark, nowhere, part)

    assert '"127.0.0.1", port 1' in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("is_ours", [False, True])
def test_an_error_of_a_server_that_passes_is_known_to_pass(
    database_url: str, spark: SparkSession, is_ours: bool
) -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with translated() if is_ours else nullcontext(), connect(database_url) as connection:
            connection.execute("set lock_timeout = 1; lock table pgque.config")
        yield from batches

    with connect(database_url) as holder, holder.transaction():
        holder.execute("lock table pgque.config")
        with pytest.raises(DatabaseError, match="lock timeout") as raised, clear_executor_errors():
            spark.range(1).mapInArrow(failing, "id bigint").collect()

    assert passes(raised.value)


def import_on_executor(spark: SparkSession, module: str) -> None:
    def needing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import_module(module)
        yield from batches

    spark.range(1).mapInArrow(needing, "id bigint").collect()


def test_a_module_that_executors_lack_is_named_with_what_to_do(spark: SparkSession) -> None:
    for module, way in (
        ("pgque_dagster.no_such_part", r"pgque_dagster\.spark\.ship\(spark\)"),
        ("adbc_driver_postgresql.no_such_part", "ship an environment that has it"),
    ):
        told = f"has no module {module}. .*{way}"
        with pytest.raises(PackageMissing, match=told), clear_executor_errors():
            import_on_executor(spark, module)


def test_an_error_of_another_kind_stays_as_it_is(spark: SparkSession) -> None:
    told = "No module named 'no_such_package'"
    with pytest.raises(PySparkException, match=told), clear_executor_errors():
        import_on_executor(spark, "no_such_package")
    with pytest.raises(PySparkException, match="no_such_column"), clear_executor_errors():
        spark.range(1).select("no_such_column")
