"""The data source `pgque`: every event of a batch once, however it is sliced."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument, StaleReadPlan
from pgque_dagster.client.batch import read_plan
from pgque_dagster.spark import register
from pgque_dagster.spark.reading import arrow
from pgque_dagster.spark.reading.options import ReadOptions
from tests.support.events import claim, make_queue, publish, tick


def read_ids(spark: SparkSession, **options: str) -> list[int]:
    register(spark)
    frame = spark.read.format("pgque").options(**options).load()
    return sorted(row.ev_id for row in frame.select("ev_id").collect())


@pytest.mark.parametrize("slices", ["1", "2", "3", "50"])
def test_each_event_is_read_once_in_any_number_of_slices(
    database_url: str, spark: SparkSession, slices: str
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        ids = client.send_batch("orders", ["x" * 100] * 1000)
        tick(client)
        batch = claim(client)

        read = read_ids(spark, url=database_url, batch_id=str(batch.batch_id), slices=slices)

    assert read == ids


def test_a_batch_across_a_rotation_is_read_whole(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        client.configure_queue("orders", rotation_period="1 microsecond")
        ids = client.send_batch("orders", ["before"] * 10)
        client.maint()
        ids += client.send_batch("orders", ["after"] * 10)
        tick(client)
        batch = claim(client)

        read = read_ids(spark, url=database_url, batch_id=str(batch.batch_id), slices="2")

    assert read == ids


def test_an_empty_batch_reads_as_no_rows(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        tick(client)
        batch = claim(client)

        assert read_ids(spark, url=database_url, batch_id=str(batch.batch_id)) == []


def test_the_columns_and_types_are_those_of_an_event(
    database_url: str, spark: SparkSession
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, ["payload"])
        batch = claim(client)
        register(spark)
        options = {"url": database_url, "batch_id": str(batch.batch_id)}

        frame = spark.read.format("pgque").options(**options).load()
        (message,) = batch.events()
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


def test_only_the_columns_asked_for_are_read(database_url: str, spark: SparkSession) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, ["payload"])
        batch = claim(client)
        register(spark)

        frame = (
            spark.read.format("pgque")
            .options(url=database_url, batch_id=str(batch.batch_id), columns="ev_data, ev_id")
            .load()
        )

        assert frame.columns == ["ev_data", "ev_id"]
        assert frame.first().ev_data == "payload"


def test_a_table_truncated_after_planning_fails_the_read(database_url: str) -> None:
    with Client(database_url) as client:
        make_queue(client)
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
        arrow.read_table(database_url, plan.slices, ["ev_id"])


def test_a_batch_that_is_not_open_is_named(database_url: str, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="batch 4711 is not open"):
        read_ids(spark, url=database_url, batch_id="4711")


def test_a_finished_batch_is_named(client: Client, database_url: str, spark: SparkSession) -> None:
    publish(client, ["payload"])
    batch = claim(client)
    batch.ack()

    with pytest.raises(PySparkException, match=f"batch {batch.batch_id} is not open"):
        read_ids(spark, url=database_url, batch_id=str(batch.batch_id))


def test_a_batch_that_somebody_else_holds_is_refused_to_another_owner(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    (event_id,) = publish(client, ["payload"])
    options = {"url": database_url, "batch_id": str(claim(client).batch_id)}

    with pytest.raises(PySparkException, match="orders/revenue is held by 'a test' until"):
        read_ids(spark, owner="somebody else", **options)
    assert read_ids(spark, owner="a test", **options) == [event_id]
    assert read_ids(spark, **options) == [event_id]


def test_a_range_of_ticks_is_read_without_a_batch(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    publish(client, ["before"])
    ids = publish(client, ["one"]) + publish(client, ["two"])
    publish(client, ["after"])

    read = read_ids(spark, url=database_url, queue="orders", from_tick="2", to_tick="4")

    assert read == ids


def test_a_tick_that_is_not_there_is_named(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    with pytest.raises(PySparkException, match='queue "orders" has no tick 99'):
        read_ids(spark, url=database_url, queue="orders", from_tick="1", to_tick="99")


def test_the_url_is_read_from_a_file_on_the_host_that_reads(
    client: Client, database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    (event_id,) = publish(client, ["payload"])
    (tmp_path / "url").write_text(f"{database_url}\n")
    batch_id = str(claim(client).batch_id)

    assert read_ids(spark, url_file=str(tmp_path / "url"), batch_id=batch_id) == [event_id]


def test_a_payload_of_100_mb_is_read(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    client.send("orders", "x" * 100_000_000)
    tick(client)
    register(spark)
    options = {"url": database_url, "batch_id": str(claim(client).batch_id)}

    frame = spark.read.format("pgque").options(columns="ev_data", **options).load()

    assert frame.selectExpr("length(ev_data) as size").first().size == 100_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_id": "1"}, "lacks the option url"),
        ({}, "lacks the option url and batch_id"),
        ({"url": "x", "batch_id": "one"}, "batch_id of format"),
        ({"url": "x", "batch_id": "1", "reader": "jdbc"}, "no reader 'jdbc'"),
        ({"url": "x", "queue": "q", "to_tick": "2"}, "lacks the option from_tick"),
        ({"url": "x", "queue": "q", "from_tick": "1", "to_tick": "x"}, "to_tick of format"),
        (
            {"url": "x", "batch_id": "1", "queue": "q", "from_tick": "1", "to_tick": "2"},
            "both a batch_id and ticks",
        ),
        (
            {"url": "x", "queue": "q", "from_tick": "1", "to_tick": "2", "owner": "me"},
            "needs a batch_id",
        ),
        ({"url": "x", "batch_id": "1", "slices": "0"}, "slices of format"),
        ({"url": "x", "batch_id": "1", "slice": "8"}, "no option 'slice'. Did you mean slices"),
        ({"url": "x", "batchid": "1"}, "no option 'batchid'. Did you mean batch_id"),
        ({"url": "x", "batch_id": "1", "zzz": "1"}, "no option 'zzz'. Its options are batch_id, "),
        ({"url": "x", "batch_id": "1", "columns": "ev_id, password"}, "no column 'password'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ReadOptions.parse(options)
