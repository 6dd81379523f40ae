"""An error that a person can correct is logged in one line, before the traceback."""

import re

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    SparkBatch,
    build_pgque_jobs,
    pgque_asset,
)
from tests.dagster.orders import Orders, consuming


@pgque_asset(queue="odrers")
def misspelt(batch: SparkBatch) -> None:
    return None


@consuming()
def wrong_schema(batch: SparkBatch) -> DataFrame:
    return batch.payload("total doubel")


@consuming(io_manager_key="parquet")
def no_frame(batch: SparkBatch) -> int:
    return batch.event_count


@consuming(io_manager_key="parquet")
def forgetful(batch):  # type: ignore[no-untyped-def]
    batch.events()


@consuming(io_manager_key="parquet")
def of_pandas(batch: SparkBatch):  # type: ignore[no-untyped-def]
    return batch.events(["ev_id"]).toPandas()


@consuming(io_manager_key="parquet")
def no_text(batch: SparkBatch) -> str:
    return batch.events()  # type: ignore[return-value]


@consuming(io_manager_key="parquet")
def raising(batch: SparkBatch) -> DataFrame:
    raise ValueError("the total is negative")


def logged_errors(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The first line of each error that Dagster printed, without time and run."""
    lines = capfd.readouterr().err.splitlines()
    return [line.split(" - ")[-1] for line in lines if " - ERROR - " in line]


@pytest.mark.parametrize(
    ("asset", "line"),
    [
        (
            misspelt,
            'queue not found: queue "odrers" does not exist. The resource pgque declares orders, '
            "payments: add the queue to its `queues`, or correct queue= of misspelt.",
        ),
        (no_frame, "no_frame returned int. Return a Spark DataFrame: batch.spark.createDataF"),
        (of_pandas, re.compile(r"of_pandas returned pandas\.(core\.frame\.)?DataFrame\. Return")),
        (no_text, 'the value for no_text is not of the type String. Value "DataFrame['),
        (raising, "ValueError: the total is negative"),
        (
            forgetful,
            "forgetful: the function returned nothing, so nothing of the batch was stored. Return "
            "the value to store. If the function stores its results itself, annotate it with "
            "-> None.",
        ),
        (wrong_schema, "doubel"),
    ],
)
def test_an_error_of_an_asset_is_told_in_one_line_before_the_traceback(
    orders: Orders,
    capfd: pytest.CaptureFixture[str],
    asset: dg.AssetsDefinition,
    line: str | re.Pattern[str],
) -> None:
    orders.publish(["a"])
    resources = {
        "parquet": ParquetBatchIOManager(base_dir="unused"),
        "pgque": PgqueResource(url=orders.client.url, queues=["orders", "payments"]),
    }

    assert not orders.run(asset, resources=resources).success
    first, *others = logged_errors(capfd)
    pattern = re.compile(re.escape(line)) if isinstance(line, str) else line
    assert pattern.search(first)
    assert not [each for each in others if pattern.search(each)]
    assert others[0].startswith("Execution of step")
    assert orders.is_free()


def test_the_reason_of_a_failed_step_stands_first_in_its_failure(orders: Orders) -> None:
    orders.publish(["a"])

    done = orders.run(raising, resources={"parquet": ParquetBatchIOManager(base_dir="unused")})

    (failed,) = [each.step_failure_data for each in done.all_events if each.is_step_failure]
    assert failed.user_failure_data.description == "ValueError: the total is negative"
    assert failed.error.message.endswith("Failure: ValueError: the total is negative\n")
    assert failed.error.cause.message == "ValueError: the total is negative\n"


def test_an_error_of_a_job_is_told_in_one_line_before_the_traceback(
    orders: Orders, capfd: pytest.CaptureFixture[str]
) -> None:
    job = next(each for each in build_pgque_jobs() if each.name == "pgque_purge_dead_letters")

    job.execute_in_process(
        run_config=dg.RunConfig(ops={"purge_dead_letters": {"config": {"queue": "odrers"}}}),
        resources={"pgque": orders.resources["pgque"]},
        raise_on_error=False,
    )

    assert logged_errors(capfd)[0].startswith('queue not found: queue "odrers"')
