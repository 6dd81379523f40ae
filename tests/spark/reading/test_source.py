"""The data source `pgque`: every event of a batch once, however it is sliced."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client, InvalidArgument, StaleReadPlan
from pgque_dagster.client.batch import read_plan
from pgque_dagster.spark import register
from pgque_dagster.spark.options import ReadOptions
from pgque_dagster.spark.reading import arrow
from tests.support.queues.events import claim, publish, tick
from tests.support.spark.attempts import BatchOf


def load(spark: SparkSession, **options: object) -> DataFrame:
    register(spark)
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("pgque").options(**given).load()


def read_ids(spark: SparkSession, **options: object) -> list[int]:
    return sorted(row.ev_id for row in load(spark, **options).select("ev_id").collect())


def test_each_event_is_read_once_in_any_number_of_slices_also_across_a_rotation(
    client: Client, spark: SparkSession
) -> None:
    client.configure_queue("orders", rotation_period="1 microsecond")
    ids = client.send_batch("orders", ["x" * 100] * 500)
    client.maint()
    ids += client.send_batch("orders", ["x" * 100] * 500)
    tick(client)
    batch_id = claim(client).batch_id

    for slices in (1, 3, 20):
        assert read_ids(spark, url=client.url, batch_id=batch_id, slices=slices) == ids
    for slices in (2, 50):
        tables = [
            arrow.read_table(client.url, [part], ["ev_id"])
            for part in read_plan(claim(client), slices).slices
        ]
        assert sorted(n for table in tables for n in table["ev_id"].to_pylist()) == ids


def test_an_empty_batch_reads_as_no_rows(client: Client, spark: SparkSession) -> None:
    tick(client)

    assert read_ids(spark, url=client.url, batch_id=claim(client).batch_id) == []


def test_the_columns_and_types_are_those_of_an_event_or_those_asked_for(
    spark: SparkSession, batch_of: BatchOf, client: Client
) -> None:
    batch = batch_of("payload")
    options = {"url": client.url, "batch_id": batch.batch_id}

    frame = load(spark, **options)
    (message,) = batch.claim.events()
    (row,) = frame.collect()

    assert dict(frame.dtypes) == {
        "ev_id": "bigint",
        "ev_time": "timestamp",
        "ev_txid": "bigint",
        "ev_retry": "int",
        **dict.fromkeys(["ev_type", "ev_data"], "string"),
        **{f"ev_extra{n}": "string" for n in range(1, 5)},
    }
    assert (row.ev_id, row.ev_type, row.ev_data) == (message.msg_id, "default", "payload")
    assert row.ev_time.timestamp() == message.created_at.timestamp()
    some = load(spark, columns="ev_data, ev_id", **options)
    assert (some.columns, some.first().ev_data) == (["ev_data", "ev_id"], "payload")


def test_a_table_truncated_after_planning_fails_the_read(client: Client) -> None:
    client.configure_queue("orders", rotation_period="1 microsecond")
    publish(client, ["payload"])
    batch = claim(client)
    plan = read_plan(batch, 1)
    batch.ack()
    for _ in range(6):
        tick(client)
        if (late := client.claim("orders", "revenue", owner="a test")) is not None:
            late.ack()
        client.maint()

    with pytest.raises(StaleReadPlan, match="truncated or rewritten"):
        arrow.read_table(client.url, plan.slices, ["ev_id"])


def test_a_batch_that_is_not_open_is_named(client: Client, spark: SparkSession) -> None:
    publish(client, ["payload"])
    finished = claim(client)
    finished.ack()

    for batch_id in (4711, finished.batch_id):
        with pytest.raises(PySparkException, match=f"batch {batch_id} is not open"):
            read_ids(spark, url=client.url, batch_id=batch_id)


def test_the_url_is_read_from_a_file_on_the_host_that_reads(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    ids = publish(client, ["payload"])
    (tmp_path / "url").write_text(f"{client.url}\n")

    assert read_ids(spark, url_file=tmp_path / "url", batch_id=claim(client).batch_id) == ids


@pytest.mark.slow
def test_a_payload_of_100_mb_is_read(client: Client, spark: SparkSession) -> None:
    client.send("orders", "x" * 100_000_000)
    tick(client)

    frame = load(spark, url=client.url, batch_id=claim(client).batch_id, columns="ev_data")

    assert frame.selectExpr("length(ev_data) as size").first().size == 100_000_000


BATCH = {"url": "x", "batch_id": "1"}
WRONG = [
    ({"batch_id": "1"}, "lacks the option url"),
    ({}, "lacks the option url and batch_id"),
    ({**BATCH, "batch_id": "one"}, "batch_id of format"),
    ({**BATCH, "slices": "0"}, "slices of format"),
    ({**BATCH, "slice": "8"}, "no option 'slice'. Did you mean slices"),
    ({"url": "x", "batchid": "1"}, "no option 'batchid'. Did you mean batch_id"),
    ({**BATCH, "zzz": "1"}, "no option 'zzz'. Its options are batch_id, "),
    ({**BATCH, "columns": "ev_id, password"}, "option columns of .* no column 'password'"),
    ({**BATCH, "columns": "ev_id,ev_date"}, "no column 'ev_date'. Did you mean ev_data"),
]


def test_a_wrong_option_is_named() -> None:
    for options, message in WRONG:
        with pytest.raises(InvalidArgument, match=message):
            ReadOptions.parse(options)
