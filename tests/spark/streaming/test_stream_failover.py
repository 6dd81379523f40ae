"""A checkpoint from before a failover: refused where its tick was lost, else it goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, TicksUnavailable
from pgque_dagster.spark.cluster.executor_errors import executor_error
from pgque_dagster.spark.streaming.options import StreamOptions
from pgque_dagster.spark.streaming.reader import PgqueStreamReader
from tests.support.events import make_queue, publish
from tests.support.replicas import Replica, Replicas, cut_off, replicas
from tests.support.streams import Sink, Stream, needs_available_now

pytestmark = needs_available_now


@pytest.fixture
def servers(server: Any) -> Iterator[Replicas]:
    with replicas(server) as made:
        yield made


@pytest.fixture
def pair(servers: Replicas) -> tuple[Replica, Replica]:
    """A primary with a queue, and its standby."""
    primary = servers.primary()
    with Client(primary.url()) as client:
        make_queue(client)
    return primary, servers.standby(primary)


def deliver(replica: Replica, spark: SparkSession, checkpoint: Path, *texts: str) -> list[str]:
    """Publishes each text with a tick of its own, and runs the query; returns what it delivered."""
    with Client(replica.url()) as client:
        for text in texts:
            publish(client, [text])
    sink = Sink()
    Stream(spark, replica.url(), checkpoint).drain(sink)
    return sink.delivered


def test_a_checkpoint_whose_tick_was_lost_is_refused(
    pair: tuple[Replica, Replica], spark: SparkSession, tmp_path: Path
) -> None:
    primary, standby = pair
    assert deliver(primary, spark, tmp_path / "checkpoint", "kept") == ["kept"]
    cut_off(standby, primary)
    assert deliver(primary, spark, tmp_path / "checkpoint", "lost 1", "lost 2") == [
        "lost 1",
        "lost 2",
    ]
    standby.promote()

    # The third tick has the number of the checkpoint's.
    for text in ("new 1", "new 2", "new 3"):
        with Client(standby.url()) as client:
            publish(client, [text])
    with pytest.raises(StreamingQueryException) as caught:
        deliver(standby, spark, tmp_path / "checkpoint")

    refusal = executor_error(caught.value)
    assert isinstance(refusal, TicksUnavailable)
    assert "that one was lost" in str(refusal) and "docs/restore.md" in str(refusal)
    found = deliver(standby, spark, tmp_path / "new checkpoint")
    assert found == ["new 1", "new 2", "new 3"]


def test_a_checkpoint_whose_tick_survived_goes_on(
    pair: tuple[Replica, Replica], spark: SparkSession, tmp_path: Path
) -> None:
    primary, standby = pair
    assert deliver(primary, spark, tmp_path / "checkpoint", "kept") == ["kept"]
    cut_off(standby, primary)
    standby.promote()

    assert deliver(standby, spark, tmp_path / "checkpoint", "new") == ["new"]


def test_a_checkpoint_without_fingerprints_goes_on(client: Client) -> None:
    def reader() -> PgqueStreamReader:
        options = {"url": client.url, "queue": "orders", "consumer": "revenue"}
        return PgqueStreamReader(StreamOptions.parse(options))

    first = reader()
    start = first.initialOffset()
    publish(client, ["a"])
    end = first.latestOffset()
    first.stop()
    for offset in (start, end):
        assert len(offset.pop("fingerprint")) == 16

    again = reader()
    assert len(again.partitions(start, end)) == 1
    again.commit(end)
    assert (
        again.initialOffset()
        == again.latestOffset()
        == end | {"fingerprint": again.latestOffset()["fingerprint"]}
    )
    again.stop()


def test_a_tick_of_another_fingerprint_is_refused_where_the_consumer_stands(
    client: Client,
) -> None:
    """The position has the number of the checkpoint's tick, so nothing need be claimed."""
    options = {"url": client.url, "queue": "orders", "consumer": "revenue"}
    reader = PgqueStreamReader(StreamOptions.parse(options))
    lost = reader.initialOffset() | {"fingerprint": "0123456789abcdef"}
    publish(client, ["a"])
    end = reader.latestOffset()

    for refused in (lambda: reader.commit(lost), lambda: reader.partitions(lost, end)):
        with pytest.raises(TicksUnavailable, match="that one was lost"):
            refused()
    reader.stop()
