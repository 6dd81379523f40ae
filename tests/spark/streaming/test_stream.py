"""Structured Streaming: every event once, in step with the checkpoint, by one query at a time."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pgque_dagster.client import Client, ConsumerNotFound, InvalidArgument
from pgque_dagster.client.peeking import retained_ticks
from pgque_dagster.spark.cluster.executor_errors import executor_error
from pgque_dagster.spark.options import StreamOptions
from tests.programs.signals import signalled
from tests.programs.streaming import store
from tests.support.queues.events import publish, tick
from tests.support.queues.sql import connect, rotate, value
from tests.support.runner.waiting import wait_until
from tests.support.spark.streams import (
    PATIENCE_SECONDS,
    Sink,
    Stream,
    needs_available_now,
    needs_limits,
)


@pytest.fixture
def stream(client: Client, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, client.url, tmp_path / "checkpoint")


def position(client: Client) -> int:
    with client.transaction() as db:
        return int(value(db, "select last_tick from pgque.get_consumer_info('orders', 'revenue')"))


def last_tick(client: Client) -> int:
    return client.run(retained_ticks("orders", "latest", None))[1]


def failed(query: StreamingQuery) -> StreamingQueryException:
    """What ends a query, which must end by itself."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_SECONDS)
    return caught.value


def test_every_event_comes_once_while_the_query_runs(client: Client, stream: Stream) -> None:
    """Whatever rotates, and although its connections break."""
    sink = Sink()
    publish(client, ["before"])
    query = stream.start(sink)
    try:
        query.processAllAvailable()
        with connect(client.url) as db:
            for number in range(4):
                publish(client, [str(number)])
                rotate(db, "orders")
                client.maint()
            query.processAllAvailable()
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        with Client(client.url) as again:
            publish(again, ["last"])
        query.processAllAvailable()
    finally:
        query.stop()

    assert sink.delivered == ["before", *map(str, range(4)), "last"]


@needs_limits
def test_available_now_drains_a_backlog_in_bounded_micro_batches_and_goes_on_there(
    client: Client, stream: Stream
) -> None:
    for number in range(4):
        publish(client, [f"{number}a", f"{number}b"])
    sink = Sink()
    stream.options["max_events"] = "4"

    stream.drain(sink)

    assert len(sink.delivered) == 8 == len(set(sink.delivered))
    assert max(map(len, sink.micro_batches.values())) <= 4
    assert position(client) == last_tick(client)


@needs_available_now
def test_a_micro_batch_comes_again_until_it_is_stored_and_not_if_it_was_not_finished(
    client: Client, stream: Stream
) -> None:
    publish(client, ["a", "b"])
    start = position(client)
    assert "the sink is full" in str(failed(stream.start(Sink(fail_at=0))))
    publish(client, ["c"])
    sink = Sink()
    query = stream.start(sink, once=True)  # Ends behind the sink, without a commit.
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert sink.micro_batches == {0: ["a", "b"]}
    assert position(client) == start

    stream.drain(sink)

    assert sink.delivered == ["a", "b", "c"]
    assert sink.attempts[0] == 0 and 0 not in sink.attempts[1:]
    assert position(client) == last_tick(client)


def test_a_consumer_is_read_by_one_query_at_a_time_until_it_is_unregistered(
    client: Client, stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    query = stream.start(Sink())
    query.processAllAvailable()
    second = Stream(spark, client.url, tmp_path / "second")
    message = str(failed(second.start(Sink())))
    publish(client, ["a"])
    lease = client.lease_info("orders", "revenue")
    query.processAllAvailable()
    client.unregister_consumer("orders", "revenue", skip=True)

    cause = executor_error(failed(query))

    assert "consumer revenue of queue orders is read by another" in message
    assert "Spark stream" in message
    assert lease is not None and lease.is_live and "Spark stream" in str(lease.owner)
    assert isinstance(cause, ConsumerNotFound)
    assert 'consumer "revenue" is not registered on queue "orders"' in str(cause)


@pytest.mark.slow  # Beside other work Spark ends the planning process before it can let go.
def test_a_query_that_ended_leaves_the_consumer_to_others(client: Client, stream: Stream) -> None:
    stream.options["lease_seconds"] = "3600"
    publish(client, ["a"])
    stream.drain(Sink())
    publish(client, ["b"])
    wait_until(lambda: not ((lease := client.lease_info("orders", "revenue")) and lease.is_live))
    batch = client.claim("orders", "revenue", owner="a worker")

    assert batch is not None
    assert [event.payload for event in batch.events()] == ["b"]


NEEDED = {"url": "x", "queue": "q", "consumer": "c"}
WRONG = [
    ({"url": "x"}, "lacks the option queue and consumer"),
    ({"queue": "q", "consumer": "c"}, "lacks the option url"),
    ({**NEEDED, "max_events": "0"}, "max_events of format"),
    ({**NEEDED, "max_events": "1e6"}, "max_events of format"),
    ({**NEEDED, "lease_seconds": ""}, "lease_seconds of"),
    ({**NEEDED, "lease_seconds": "soon"}, "lease_seconds of"),
    ({**NEEDED, "columns": "ev_what"}, "no column 'ev_what'"),
    ({**NEEDED, "max_event": "5"}, "no option 'max_event'. Did you mean max_events"),
]


def test_a_wrong_option_is_named() -> None:
    for options, message in WRONG:
        with pytest.raises(InvalidArgument, match=message):
            StreamOptions.parse(options)


def test_a_query_with_an_option_that_cannot_be_used_says_which(stream: Stream) -> None:
    sink = Sink()
    stream.options["max_events"] = "0"

    cause = executor_error(failed(stream.start(sink, availableNow=True)))

    assert isinstance(cause, InvalidArgument)
    assert "option max_events of format('pgque') is '0'. It is a whole" in str(cause)
    assert sink.attempts == []


@pytest.mark.slow
@needs_limits
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_killed_around_storing_leaves_each_event_once(
    client: Client, spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    def send(count: int) -> list[int]:
        ids = client.send_batch("orders", ["x"] * count)
        tick(client)
        return ids

    ids = send(50) + send(40) + send(60)
    target, checkpoint = str(tmp_path / "target"), tmp_path / "checkpoint"
    arguments = (client.url, str(checkpoint), target, moment)
    with signalled("streaming", *arguments, log=tmp_path / "log"):
        ids += send(30)

    Stream(spark, client.url, checkpoint, max_events="100").drain(partial(store, target, None))

    rows = spark.read.parquet(f"{target}/*").select("ev_id").collect()
    assert sorted(row.ev_id for row in rows) == ids
