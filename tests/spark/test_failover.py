"""What was read and stored from a server which is lost, and the standby that was promoted."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument, TicksUnavailable
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark.cluster.executor_errors import executor_error
from pgque_dagster.spark.streaming.reader import PgqueStreamReader
from tests.support.queues.events import claim, make_queue, publish
from tests.support.servers.standbys import Replicas, cut_off, replicas
from tests.support.spark.streams import Sink, Stream, needs_available_now


@pytest.fixture
def servers() -> Iterator[Replicas]:
    with replicas() as made:
        yield made


def store(client: Client, spark: SparkSession, folder: Path) -> tuple[int, int]:
    """Stores the next batch's payloads and acks it; returns its id and its last tick."""
    claimed = claim(client)
    batch = SparkBatch(spark, claimed, client.url)
    ParquetSink(folder).write(batch, batch.events().select("ev_data"))
    claimed.ack()
    return claimed.batch_id, claimed.lease.tick_id


def stored(folder: Path, spark: SparkSession) -> list[str]:
    return sorted(row.ev_data for row in ParquetSink(folder).read(spark).collect())


def delivered(spark: SparkSession, client: Client, checkpoint: Path) -> list[str]:
    sink = Sink()
    Stream(spark, client.url, checkpoint, consumer=checkpoint.name).drain(sink)
    return sink.delivered


@pytest.mark.slow
@needs_available_now
def test_after_a_failover_what_the_standby_lost_is_not_taken_for_what_it_has(
    servers: Replicas, spark: SparkSession, tmp_path: Path
) -> None:
    """Parquet is refused until lost batches are removed, a checkpoint whose tick was lost, too."""
    folder, ahead, behind = (tmp_path / name for name in ("table", "ahead", "behind"))
    primary = servers.primary()
    standby = servers.standby(primary)
    with Client(primary.url) as client:
        make_queue(client)
        for consumer in ("ahead", "behind"):
            client.register_consumer("orders", consumer)
        publish(client, ["kept"])
        written = [store(client, spark, folder)]
        assert delivered(spark, client, behind) == delivered(spark, client, ahead) == ["kept"]
        publish(client, ["survivor"])
        cut_off(standby, primary)
        for text in ("lost 1", "lost 2"):
            written.append(store(client, spark, folder))
            publish(client, [text])
        written.append(store(client, spark, folder))
        assert delivered(spark, client, ahead) == ["survivor", "lost 1", "lost 2"]
        old = client.incarnation()
    standby.promote()

    with Client(standby.url) as client:
        # One of the ticks has the number of the checkpoint's.
        new = [f"new {number}" for number in range(4)]
        for text in new:
            publish(client, [text])
        with pytest.raises(StreamingQueryException) as caught:
            delivered(spark, client, ahead)
        refusal = executor_error(caught.value)
        assert isinstance(refusal, TicksUnavailable)
        assert "that one was lost" in str(refusal) and "docs/restore.md" in str(refusal)
        shutil.rmtree(ahead)
        assert delivered(spark, client, ahead)[-4:] == new
        assert delivered(spark, client, behind) == ["survivor", *new]

        with pytest.raises(InvalidArgument) as refused:
            store(client, spark, folder)
        assert stored(folder, spark) == ["kept", "lost 1", "lost 2", "survivor"]
        assert "After a failover or a restore" in str(refused.value)
        assert "docs/restore.md" in str(refused.value)
        last_tick = {each.name: each.last_tick_id for each in client.consumers("orders")}
        for batch, tick_id in written:
            if tick_id > (last_tick["revenue"] or 0):
                shutil.rmtree(folder / f"batch-{batch}")
        marks = folder / "_pgque" / "lineages"
        (marks / str(old)).rename(marks / str(client.incarnation()))
        again = {store(client, spark, folder)[0] for _ in range(5)}

    assert stored(folder, spark) == ["kept", *new, "survivor"]
    assert not again & {batch for batch, _ in written}


def test_the_tick_of_a_checkpoint_is_known_by_its_fingerprint(client: Client) -> None:
    def reader() -> PgqueStreamReader:
        options = {"url": client.url, "queue": "orders", "consumer": "revenue"}
        return PgqueStreamReader(options)

    first = reader()
    start = first.initialOffset()
    publish(client, ["a"])
    end = first.latestOffset()
    lost = start | {"fingerprint": "0123456789abcdef"}
    # The position has the number of the checkpoint's tick, so nothing need be claimed.
    for refused in (lambda: first.commit(lost), lambda: first.partitions(lost, end)):
        with pytest.raises(TicksUnavailable, match="that one was lost"):
            refused()
    assert len(first.partitions(start, end)) == 1
    first.commit(end)
    assert first.initialOffset() == first.latestOffset()
    first.stop()
