"""Events from a DataFrame: all of them once, or none."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from pgque_dagster.spark.options import WriteOptions
from pgque_dagster.spark.writing.event_columns import EventColumns
from pgque_dagster.spark.writing.writer import PgqueWriter
from tests.support.queues.events import claim, tick
from tests.support.queues.sql import connect, rows
from tests.support.runner.waiting import wait_until

# What COPY, CSV or JSON could take for something else.
NASTY = ["", " ", "\\N", "\\.", "a\n\\.\nb", "tab\there", "\r\n", 'quo"te', "é漢🎉", "back\\slash"]


def write(frame: DataFrame, client: Client, mode: str = "append", **options: str) -> None:
    register(frame.sparkSession)
    options = {"url": client.url, "queue": "orders", **options}
    frame.write.format("pgque").options(**options).mode(mode).save()


def sent(client: Client) -> list[Message]:
    """The events of the next batch."""
    tick(client)
    batch = claim(client)
    found = batch.events()
    batch.ack()
    return found


def staging_tables(client: Client) -> list[tuple[Any, ...]]:
    with connect(client.url) as db:
        return rows(db, "select relname::text from pg_class where relkind = 'r'"
                    " and relname ~ '^staging_[0-9]+$'")  # fmt: skip


def test_rows_become_events_each_once_and_those_of_a_partition_in_order(
    client: Client, spark: SparkSession
) -> None:
    numbers = spark.range(5_000).select(f.col("id").cast("string").alias("data"))

    write(numbers.repartition(5), client)
    events = sent(client)
    assert sorted(int(event.payload or "") for event in events) == list(range(5_000))
    assert {event.type for event in events} == {"default"}

    write(numbers.limit(3000).coalesce(1), client)
    assert [event.payload for event in sent(client)] == [str(n) for n in range(3000)]
    write(numbers.where("false"), client)
    assert sent(client) == staging_tables(client) == []


def test_columns_map_to_the_parts_of_an_event_and_texts_arrive_as_they_are(
    client: Client, spark: SparkSession
) -> None:
    frame = spark.createDataFrame(
        [("placed", text, "key", text, None, "four") for text in NASTY],
        "type string, data string, partition_key string, extra2 string, ev_extra3 string,"
        " ev_extra4 string",
    )

    write(frame, client)
    write(frame.drop("type").limit(1), client, type="nasty\ttype")

    *events, last = sent(client)
    assert sorted(event.payload or "" for event in events) == sorted(NASTY)
    for event in events:
        assert (event.type, event.extra1, event.extra2) == ("placed", "key", event.payload)
        assert (event.extra3, event.extra4) == (None, "four")
    assert last.type == "nasty\ttype"


def test_a_task_that_fails_in_the_end_leaves_nothing(client: Client, spark: SparkSession) -> None:
    """The last of 4 partitions fails at its end, when others are done."""

    def fail(number: int) -> str:
        if number == 3_999:
            raise ValueError("the last row")
        return str(number)

    frame = spark.range(4_000, numPartitions=4).select(f.udf(fail)("id").alias("data"))

    with pytest.raises(PySparkException, match="the last row"):
        write(frame, client)

    assert sent(client) == []
    # Maintenance takes a staging that another task still wrote to at the abort.

    def is_clean() -> bool:
        client.maint()
        return not staging_tables(client)

    wait_until(is_clean)


# What Spark does with a writer, step by step.


@pytest.fixture
def writer(client: Client) -> PgqueWriter:
    options = WriteOptions(DatabaseAddress(client.url), "orders", None)
    return PgqueWriter(options, StructType().add("data", "string"), overwrite=False)


def attempt(writer: PgqueWriter, *texts: str) -> Any:
    batch = pa.RecordBatch.from_pydict({"data": list(texts)})
    return writer.write(iter([batch]))


def test_of_several_attempts_at_a_task_only_the_one_that_counts_is_sent_once(
    client: Client, writer: PgqueWriter
) -> None:
    """As with speculation, a retry, or a connection that broke over the commit."""

    def dying() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"data": ["a"] * 1000})
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        writer.write(dying())
    attempt(writer, "a", "b")
    counted = attempt(writer, "a", "b")
    other_task = attempt(writer, "c")

    for _ in range(2):
        writer.commit([counted, other_task])

    assert [event.payload for event in sent(client)] == ["a", "b", "c"]


def test_a_driver_that_dies_before_the_commit_has_sent_nothing(
    client: Client, writer: PgqueWriter
) -> None:
    attempt(writer, "a")

    assert sent(client) == []
    with connect(client.url) as db:
        db.execute("update pgque.staging set used_at = used_at - interval '1 day'")
    client.maint()
    assert staging_tables(client) == []


def test_what_the_server_lost_in_a_crash_is_noticed(client: Client, writer: PgqueWriter) -> None:
    written = attempt(writer, "a")
    ((table,),) = staging_tables(client)
    with connect(client.url) as db:
        db.execute(f"truncate pgque.{table}".encode())

    with pytest.raises(StagingLost, match="holds 0 of 1 events"):
        writer.commit([written])

    assert sent(client) == []


def test_what_cannot_be_sent_fails_the_whole_write(client: Client, spark: SparkSession) -> None:
    good: list[tuple[str | None]] = [("{}",)]
    for more, mode, options, told in (
        ([(None,)], "append", {}, "column data is null in 1 of"),
        ([("a\0b",)], "append", {}, r"column ev_data holds .* U\+0000"),
        ([], "append", {"queue": "nowhere"}, 'queue "nowhere" does not exist'),
        ([], "append", {"queue": ""}, "lacks the option queue"),
        ([], "append", {"typ": "order"}, "no option 'typ'"),
        ([], "overwrite", {}, "cannot be overwritten"),
    ):
        with pytest.raises(PySparkException, match=told):
            write(spark.createDataFrame([*good, *more], "data string"), client, mode, **options)

    assert sent(client) == []


NO_EVENTS = [
    ("id int", None, "an event has no column id"),
    ("type string", None, "no column is the events' payload"),
    ("data struct<id: int>", None, "column data is struct<id:int>"),
    ("data string, payload string", None, "data and payload are both the event's ev_data"),
    ("extra1 string, partition_key string, data string", None, "both the event's ev_extra1"),
    ("data string, type string", "t", "both the option type and the column type"),
]


def test_columns_that_make_no_event_are_named() -> None:
    for ddl, type_, message in NO_EVENTS:
        with pytest.raises(InvalidArgument, match=message):
            EventColumns.of(StructType.fromDDL(ddl), type_)


def test_of_two_writes_at_once_one_that_fails_sends_nothing_and_the_other_all(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    frames = [
        meeting(spark, 0, one, other, fails=True),
        meeting(spark, 500, other, one, fails=False),
    ]

    with ThreadPoolExecutor(2) as threads:
        first, second = (threads.submit(write, frame, client) for frame in frames)
        second.result()
        with pytest.raises(PySparkException, match="killed in the middle"):
            first.result()

    events = sorted(int(event.payload or "") for event in sent(client))
    assert events == list(range(500, 1_000))


def meeting(spark: SparkSession, first: int, here: Path, there: Path, *, fails: bool) -> DataFrame:
    """One partition of numbers; in the middle of it, it waits until the other one is there, too."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch[:half]
            here.touch()
            wait_until(there.exists)
            if fails:
                raise RuntimeError("killed in the middle")
            yield batch[half:]

    numbers = spark.range(first, first + 500, numPartitions=1).selectExpr("string(id) as data")
    return numbers.mapInArrow(pass_on, "data string")
