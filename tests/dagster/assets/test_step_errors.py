"""An error that a person can correct is logged in one line, before the traceback."""

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    SparkBatch,
    build_pgque_jobs,
    pgque_asset,
)
from pgque_dagster.client import Client
from tests.dagster.support import materialize
from tests.support.events import publish


@pgque_asset(queue="odrers")
def misspelt(batch: SparkBatch) -> None:
    return None


@pgque_asset(queue="orders", consumer="revenue")
def wrong_schema(batch: SparkBatch) -> DataFrame:
    return batch.payload("total doubel")


@pgque_asset(queue="orders", consumer="revenue", io_manager_key="parquet")
def no_frame(batch: SparkBatch) -> int:
    return batch.event_count


def logged_errors(printed: str) -> list[str]:
    """The first line of each error that Dagster printed, without time and run."""
    return [line.split(" - ")[-1] for line in printed.splitlines() if " - ERROR - " in line]


@pytest.mark.parametrize(
    ("asset", "line"),
    [
        (
            misspelt,
            'queue not found: queue "odrers" does not exist. The resource pgque declares none: '
            "add the queue to its `queues`, or correct queue= of misspelt.",
        ),
        (no_frame, "no_frame returned int. Return a Spark DataFrame."),
    ],
)
def test_an_error_of_an_asset_is_told_in_one_line_before_the_traceback(
    client: Client,
    spark: SparkSession,
    capfd: pytest.CaptureFixture[str],
    asset: dg.AssetsDefinition,
    line: str,
) -> None:
    publish(client, ["a"])

    result = materialize(
        asset, client.url, spark, resources={"parquet": ParquetBatchIOManager(base_dir="unused")}
    )

    assert not result.success
    logged = logged_errors(capfd.readouterr().err)
    assert logged[0] == line
    assert logged.count(line) == 1
    assert logged[1].startswith("Execution of step")


def test_a_schema_that_is_wrong_is_told_in_one_line(
    client: Client, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(client, ["a"])

    assert not materialize(wrong_schema, client.url, spark).success

    assert "doubel" in logged_errors(capfd.readouterr().err)[0]


def test_an_error_of_a_job_is_told_in_one_line_before_the_traceback(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    job = next(each for each in build_pgque_jobs() if each.name == "pgque_pause_queue")

    job.execute_in_process(
        run_config=dg.RunConfig(ops={"pause_queue": {"config": {"queue": "odrers"}}}),
        resources={"pgque": PgqueResource(url=client.url)},
        raise_on_error=False,
    )

    assert logged_errors(capfd.readouterr().err)[0].startswith('queue not found: queue "odrers"')
