"""Structured Streaming: every event once, in step with the checkpoint, by one query at a time."""

import shutil
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pgque_dagster.client import Client, ConsumerNotFound, InvalidArgument, TicksUnavailable
from pgque_dagster.client.calls.ticks import claim_ticks
from pgque_dagster.spark.cluster.executor_errors import executor_error
from pgque_dagster.spark.streaming.options import StreamOptions
from pgque_dagster.spark.streaming.reader import CheckpointMismatch
from tests.support.events import publish, tick
from tests.support.queues import connect, rotate, stored_payloads, value
from tests.support.streams import PATIENCE_SECONDS, Sink, Stream, needs_available_now, needs_limits


@pytest.fixture
def stream(client: Client, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, client.url, tmp_path / "checkpoint")


def position(client: Client) -> int:
    with client.transaction() as db:
        return int(value(db, "select last_tick from pgque.get_consumer_info('orders', 'revenue')"))


def last_tick(client: Client) -> int:
    return client.queues()[0].last_tick_id


def failure(query: StreamingQuery) -> str:
    """What ends a query, which must end by itself."""
    return str(failed(query))


def failed(query: StreamingQuery) -> StreamingQueryException:
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(PATIENCE_SECONDS)
    return caught.value


def test_every_event_comes_once_while_the_query_runs(client: Client, stream: Stream) -> None:
    sink = Sink()
    publish(client, ["before"])
    query = stream.start(sink)
    try:
        query.processAllAvailable()
        publish(client, ["later"])
        query.processAllAvailable()
        publish(client, ["last"])
        query.processAllAvailable()
    finally:
        query.stop()

    assert sink.delivered == ["before", "later", "last"]


@needs_limits
def test_available_now_drains_a_backlog_in_bounded_micro_batches(
    client: Client, stream: Stream
) -> None:
    for number in range(7):
        publish(client, [f"{number}a", f"{number}b"])
    sink = Sink()
    stream.options["max_events"] = "4"

    stream.drain(sink)

    assert len(sink.delivered) == 14 == len(set(sink.delivered))
    assert max(map(len, sink.micro_batches.values())) <= 4


@needs_available_now
def test_a_query_that_has_caught_up_has_finished_its_position(
    client: Client, stream: Stream
) -> None:
    publish(client, ["a"])

    stream.drain(Sink())

    assert position(client) == last_tick(client)


def test_after_a_stop_the_next_query_goes_on(client: Client, stream: Stream) -> None:
    publish(client, ["a", "b"])
    stream.drain(before := Sink())
    publish(client, ["c"])
    stream.drain(after := Sink())

    assert (before.delivered, after.delivered) == (["a", "b"], ["c"])


@needs_available_now
def test_a_micro_batch_that_was_stored_but_not_finished_is_not_repeated(
    client: Client, stream: Stream
) -> None:
    publish(client, ["a"])
    start = position(client)
    sink = Sink()
    query = stream.start(sink, once=True)  # Ends behind the sink, without a commit.
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert position(client) == start
    publish(client, ["b"])

    stream.drain(sink)

    assert sink.delivered == ["a", "b"]
    assert sink.attempts[0] == 0 and 0 not in sink.attempts[1:]
    assert position(client) == last_tick(client)


@needs_available_now
def test_a_micro_batch_that_was_not_stored_comes_again_with_the_same_events(
    client: Client, stream: Stream
) -> None:
    publish(client, ["a", "b"])
    failing = Sink(fail_at=0)
    assert "the sink is full" in failure(stream.start(failing))
    publish(client, ["c"])
    sink = Sink()

    stream.drain(sink)

    assert sink.micro_batches[0] == ["a", "b"]
    assert sink.delivered == ["a", "b", "c"]


def test_events_expire_for_a_repeated_micro_batch_as_they_did_at_first(
    client: Client, stream: Stream
) -> None:
    client.configure_queue("orders", event_ttl="1 hour")
    publish(client, ["a"])
    assert "the sink is full" in failure(stream.start(Sink(fail_at=0)))
    client.configure_queue("orders", event_ttl="1 millisecond")
    sink = Sink()

    stream.drain(sink)

    assert sink.micro_batches[0] == ["a"]


def test_a_second_query_on_the_consumer_is_refused(
    client: Client, stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    query = stream.start(Sink())
    try:
        query.processAllAvailable()
        second = Stream(spark, client.url, tmp_path / "second")
        message = failure(second.start(Sink()))
        publish(client, ["a"])
        query.processAllAvailable()
    finally:
        query.stop()

    assert "consumer revenue of queue orders is read by another" in message
    assert "Spark stream" in message


def test_a_worker_cannot_take_a_batch_from_under_a_query(client: Client, stream: Stream) -> None:
    query = stream.start(Sink())
    try:
        query.processAllAvailable()
        publish(client, ["a"])
        lease = client.lease_info("orders", "revenue")
    finally:
        query.stop()

    assert lease is not None and lease.is_live and "Spark stream" in str(lease.owner)


def test_a_dead_querys_lease_is_waited_for(client: Client, stream: Stream) -> None:
    stream.options["lease_seconds"] = "20"
    publish(client, ["a"])
    dead = StreamOptions.parse(stream.options)
    client.run(claim_ticks(dead.queue, dead.consumer, "a dead query", dead.lease / 10))
    sink = Sink()

    stream.drain(sink)

    assert sink.delivered == ["a"]


@pytest.mark.slow  # Beside other work Spark ends the planning process before it can let go.
def test_a_query_that_ended_leaves_the_consumer_to_others(client: Client, stream: Stream) -> None:
    stream.options["lease_seconds"] = "3600"
    publish(client, ["a"])
    stream.drain(Sink())
    publish(client, ["b"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (lease := client.lease_info("orders", "revenue")) and lease.is_live:
        assert time.monotonic() < deadline, f"still held: {lease}"
        time.sleep(0.1)

    batch = client.claim("orders", "revenue", owner="a worker")

    assert batch is not None
    assert [event.payload for event in batch.events()] == ["b"]


def test_rotation_waits_for_what_is_not_stored(client: Client, stream: Stream) -> None:
    publish(client, ["a"])
    assert "the sink is full" in failure(stream.start(Sink(fail_at=0)))
    with connect(client.url) as db:
        for _ in range(4):
            rotate(db, "orders")
        assert stored_payloads(db, "orders") == {"a"}
        sink = Sink()
        stream.drain(sink)
        tick(client)
        stream.drain(sink)
        for _ in range(4):
            rotate(db, "orders")

        assert sink.delivered == ["a"]
        assert stored_payloads(db, "orders") == set()


def test_rotations_during_the_query_lose_nothing(client: Client, stream: Stream) -> None:
    sink = Sink()
    query = stream.start(sink)
    try:
        with connect(client.url) as db:
            for number in range(8):
                publish(client, [str(number)])
                rotate(db, "orders")
                client.maint()
                if number % 3 == 0:
                    query.processAllAvailable()
            query.processAllAvailable()
    finally:
        query.stop()

    assert sink.delivered == [str(number) for number in range(8)]


def test_a_consumer_that_is_unregistered_meanwhile_ends_the_query(
    client: Client, stream: Stream
) -> None:
    query = stream.start(Sink())
    query.processAllAvailable()
    client.unregister_consumer("orders", "revenue")

    cause = executor_error(failed(query))

    assert isinstance(cause, ConsumerNotFound)
    assert 'consumer "revenue" is not registered on queue "orders"' in str(cause)


def test_the_checkpoint_of_another_consumer_is_refused(client: Client, stream: Stream) -> None:
    publish(client, ["a"])
    stream.drain(Sink())
    client.register_consumer("orders", "audit")
    stream.options["consumer"] = "audit"

    cause = executor_error(failed(stream.start(Sink())))

    assert isinstance(cause, CheckpointMismatch)
    assert "that of consumer revenue on queue orders" in str(cause)
    assert "not of consumer audit on queue orders" in str(cause)


def test_the_checkpoint_of_an_earlier_registration_is_refused(
    client: Client, stream: Stream
) -> None:
    publish(client, ["a"])
    stream.drain(Sink())
    client.unregister_consumer("orders", "revenue")
    client.register_consumer("orders", "revenue")

    assert "revenue on queue orders was registered anew" in failure(stream.start(Sink()))


@needs_available_now
def test_an_old_checkpoint_is_refused(client: Client, stream: Stream, tmp_path: Path) -> None:
    publish(client, ["a"])
    stream.drain(Sink())
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    publish(client, ["b"])
    stream.drain(Sink())
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "old").rename(tmp_path / "checkpoint")

    cause = executor_error(failed(stream.start(Sink())))

    assert isinstance(cause, TicksUnavailable)
    assert 'consumer "revenue" on queue "orders" has finished tick' in str(cause)


def test_a_connection_that_broke_is_opened_again(client: Client, stream: Stream) -> None:
    sink = Sink()
    query = stream.start(sink)
    try:
        query.processAllAvailable()
        with client.transaction() as db:
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        publish(client, ["a"])
        query.processAllAvailable()
    finally:
        query.stop()

    assert sink.delivered == ["a"]


@needs_limits
def test_a_parquet_sink_holds_each_event_once(
    client: Client, stream: Stream, spark: SparkSession, tmp_path: Path
) -> None:
    stream.options |= {"columns": "ev_id, ev_data", "slices": "2", "max_events": "500"}
    target = str(tmp_path / "events")
    for _ in range(2):
        for _ in range(3):
            client.send_batch("orders", ["x" * 100] * 500)
            tick(client)
        query = stream.writer().format("parquet").trigger(availableNow=True).start(target)
        assert query.awaitTermination(PATIENCE_SECONDS)

    stored = spark.read.parquet(target)

    assert stored.columns == ["ev_id", "ev_data"]
    assert stored.count() == 3000 == stored.select("ev_id").distinct().count()


def test_the_url_can_stay_in_a_file_of_each_host(
    client: Client, stream: Stream, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(client.url)
    del stream.options["url"]
    stream.options["url_file"] = str(tmp_path / "url")
    publish(client, ["a"])

    stream.drain(sink := Sink())

    assert sink.delivered == ["a"]


def test_a_consumer_that_is_not_registered_is_named(client: Client, stream: Stream) -> None:
    stream.options["consumer"] = "nobody"

    assert 'consumer "nobody" is not registered on queue "orders"' in failure(stream.start(Sink()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "x"}, "lacks the option queue and consumer"),
        ({"queue": "q", "consumer": "c"}, "lacks the option url"),
        ({"url": "x", "queue": "q", "consumer": "c", "max_events": "0"}, "max_events of format"),
        ({"url": "x", "queue": "q", "consumer": "c", "max_events": "1e6"}, "max_events of format"),
        ({"url": "x", "queue": "q", "consumer": "c", "lease_seconds": ""}, "lease_seconds of"),
        ({"url": "x", "queue": "q", "consumer": "c", "columns": "ev_what"}, "no column 'ev_what'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        StreamOptions.parse(options)
