"""Events from a DataFrame: all of them once, or none."""

import json
import time
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pgque_dagster.client import Client, InvalidArgument, Message, StagingLost
from pgque_dagster.spark import register
from pgque_dagster.spark.address import DatabaseAddress
from pgque_dagster.spark.writing.event_columns import EventColumns
from pgque_dagster.spark.writing.writer import PgqueWriter, WriteOptions
from tests.support.events import claim, make_queue, tick
from tests.support.queues import connect, rows

# What COPY, CSV or JSON could take for something else.
NASTY = ["", " ", "\\N", "\\.", "a\n\\.\nb", "tab\there", "\r\n", 'quo"te', "é漢🎉", "back\\slash"]


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as opened:
        make_queue(opened)
        yield opened


def write(frame: DataFrame, client: Client, mode: str = "append", **options: str) -> None:
    register(frame.sparkSession)
    frame.write.format("pgque").options(**{"url": client.url, "queue": "orders", **options}).mode(
        mode
    ).save()


def sent(client: Client) -> list[Message]:
    """The events of the next batch."""
    tick(client)
    batch = claim(client)
    found = batch.events()
    batch.ack()
    return found


def staging_tables(client: Client) -> list[tuple[Any, ...]]:
    with connect(client.url) as db:
        return rows(db, "select 1 from pg_class where relkind = 'r' and relname ~ '^staging_'")


def test_rows_become_events_each_once(client: Client, spark: SparkSession) -> None:
    frame = spark.range(25_000).repartition(5).select(f.col("id").cast("string").alias("data"))

    write(frame, client)

    events = sent(client)
    assert sorted(int(event.payload or "") for event in events) == list(range(25_000))
    assert {event.type for event in events} == {"default"}
    assert staging_tables(client) == []


def test_columns_map_to_the_parts_of_an_event(client: Client, spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("placed", "{}", "key", "two", None, "four")],
        "type string, data string, partition_key string, extra2 string, ev_extra3 string,"
        " ev_extra4 string",
    )

    write(frame, client)

    (event,) = sent(client)
    assert (event.type, event.payload) == ("placed", "{}")
    assert (event.extra1, event.extra2, event.extra3, event.extra4) == ("key", "two", None, "four")


def test_texts_arrive_as_they_are(client: Client, spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text, text) for text in NASTY], "data string, extra1 string")

    write(frame, client, type="nasty\ttype")

    events = sent(client)
    assert sorted(event.payload or "" for event in events) == sorted(NASTY)
    assert all(event.extra1 == event.payload for event in events)
    assert {event.type for event in events} == {"nasty\ttype"}


def test_events_of_a_partition_keep_their_order(client: Client, spark: SparkSession) -> None:
    frame = spark.range(3000).coalesce(1).select(f.col("id").cast("string").alias("data"))

    write(frame, client)

    assert [event.payload for event in sent(client)] == [str(n) for n in range(3000)]


def test_an_empty_dataframe_sends_nothing(client: Client, spark: SparkSession) -> None:
    write(spark.createDataFrame([], "data string"), client)

    assert sent(client) == []
    assert staging_tables(client) == []


def test_the_other_columns_make_the_payload(client: Client, spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [
            (
                "placed",
                7,
                None,
                Decimal("1.50"),
                date(2026, 1, 2),
                datetime(2026, 1, 2, 3, 4, 5),
                [1, 2],
                ("é", None),
            )
        ],
        "type string, id int, gone string, total decimal(10,2), day date, at timestamp_ntz,"
        " many array<int>, one struct<name: string, rest: string>",
    )

    write(frame, client, payload="json")

    (event,) = sent(client)
    assert event.type == "placed"
    assert json.loads(event.payload or "") == {
        "id": 7,
        "total": "1.50",
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05",
        "many": [1, 2],
        "one": {"name": "é"},
    }


def test_a_task_that_fails_in_the_end_leaves_nothing(client: Client, spark: SparkSession) -> None:
    """The last of 4 partitions fails after 9,999 rows, when others are done."""

    def fail(number: int) -> str:
        if number == 39_999:
            raise ValueError("the last row")
        return str(number)

    frame = spark.range(40_000, numPartitions=4).select(f.udf(fail)("id").alias("data"))

    with pytest.raises(PySparkException, match="the last row"):
        write(frame, client)

    assert sent(client) == []
    forget_stagings(client)


def forget_stagings(client: Client) -> None:
    """Waits until maintenance has taken a staging that another task still wrote to at the abort."""
    deadline = time.monotonic() + 60
    while staging_tables(client) and time.monotonic() < deadline:
        client.maint()
        time.sleep(0.1)
    assert staging_tables(client) == []


def attempt(writer: PgqueWriter, *texts: str) -> Any:
    batch = pa.RecordBatch.from_pydict({"data": list(texts)})
    return writer.write(iter([batch]))


def make_writer(client: Client) -> PgqueWriter:
    return PgqueWriter(
        WriteOptions(DatabaseAddress(client.url), "orders", None, None),
        StructType().add("data", "string"),
        overwrite=False,
    )


def test_of_two_attempts_at_a_task_only_the_one_that_counts_is_sent(client: Client) -> None:
    """As with speculation, or a retry after an executor died behind its commit."""
    writer = make_writer(client)
    attempt(writer, "a", "b")
    counted = attempt(writer, "a", "b")
    other_task = attempt(writer, "c")

    writer.commit([counted, other_task])

    assert [event.payload for event in sent(client)] == ["a", "b", "c"]


def test_an_attempt_that_dies_while_it_writes_leaves_nothing(client: Client) -> None:
    writer = make_writer(client)

    def dying() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"data": ["a"] * 1000})
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        writer.write(dying())
    writer.commit([attempt(writer, "b")])

    assert [event.payload for event in sent(client)] == ["b"]


def test_a_driver_that_dies_before_the_commit_has_sent_nothing(client: Client) -> None:
    writer = make_writer(client)
    attempt(writer, "a")
    del writer

    assert sent(client) == []
    with connect(client.url) as db:
        db.execute("update pgque.staging set used_at = used_at - interval '1 day'")
    client.maint()
    assert staging_tables(client) == []


def test_asking_for_the_commit_again_sends_nothing_twice(client: Client) -> None:
    """As after a connection that broke over it."""
    writer = make_writer(client)
    written = attempt(writer, "a")

    writer.commit([written])
    writer.commit([written])

    assert [event.payload for event in sent(client)] == ["a"]


def test_what_the_server_lost_in_a_crash_is_noticed(client: Client) -> None:
    writer = make_writer(client)
    written = attempt(writer, "a")
    with connect(client.url) as db:
        (table,) = rows(db, "select relname::text from pg_class where relname ~ '^staging_[0-9]+$'")
        db.execute(f"truncate pgque.{table[0]}".encode())

    with pytest.raises(StagingLost, match="holds 0 of 1 events"):
        writer.commit([written])

    assert sent(client) == []


def test_a_queue_must_exist_and_is_only_added_to(client: Client, spark: SparkSession) -> None:
    frame = spark.createDataFrame([("{}",)], "data string")

    with pytest.raises(PySparkException, match='queue "nowhere" does not exist'):
        write(frame, client, queue="nowhere")
    with pytest.raises(PySparkException, match="lacks the option queue"):
        write(frame, client, queue="")
    with pytest.raises(PySparkException, match="no option 'typ'"):
        write(frame, client, typ="order")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        write(frame, client, mode="overwrite")


def test_an_event_without_payload_fails_the_write(client: Client, spark: SparkSession) -> None:
    frame = spark.createDataFrame([("{}",), (None,)], "data string")

    with pytest.raises(PySparkException, match="column data is null in 1 of"):
        write(frame, client)

    assert sent(client) == []


def test_a_text_that_postgres_cannot_hold_fails_the_write(
    client: Client, spark: SparkSession
) -> None:
    frame = spark.createDataFrame([("good",), ("a\0b",)], "data string")

    with pytest.raises(PySparkException, match=r"column ev_data holds .* U\+0000"):
        write(frame, client)

    assert sent(client) == []


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("id int", {}, "an event has no column id"),
        ("type string", {}, "no column is the events' payload"),
        ("data struct<id: int>", {}, "column data is struct<id:int>"),
        ("data string, payload string", {}, "data and payload are both the event's ev_data"),
        ("extra1 string, partition_key string, data string", {}, "both the event's ev_extra1"),
        ("data string, type string", {"type": "t"}, "both the option type and the column type"),
        ("data string", {"payload": "xml"}, "payload of format"),
        ("data string, id int", {"payload": "json"}, "data is the payload already"),
        ("type string", {"payload": "json"}, "no column is left"),
    ],
)
def test_columns_that_make_no_event_are_named(
    spark: SparkSession, ddl: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        EventColumns.of(StructType.fromDDL(ddl), options.get("type"), options.get("payload"))
