"""Batches of three queues, empty ones too: every reader shows the events of its queue only."""

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark import batch as batch_module
from tests.support.events import claim, make_queue
from tests.support.streams import Sink, Stream, needs_available_now

QUEUES = ("orders", "returns", "quiet")
ROUNDS = 4
SEED = 7


def rounds() -> list[dict[str, list[str]]]:
    """What is sent to each queue between two ticks; the quiet one gets next to nothing."""
    mix = random.Random(SEED)
    return [
        {
            "orders": [f"order {nr}/{n}" for n in range(mix.choice([0, 1, 3, 1200]))],
            "returns": [f"return {nr}/{n}" for n in range(mix.choice([0, 1, 3]))],
            "quiet": ["only one"] if nr == ROUNDS - 2 else [],
        }
        for nr in range(ROUNDS)
    ]


def publish_round(client: Client, sent: dict[str, list[str]], nr: int) -> None:
    for queue in QUEUES:
        if sent[queue]:
            client.send_batch(queue, sent[queue])
        elif nr % 2:
            use_up_ids(client, queue)
        client.force_next_tick(queue)
    client.ticker()


def use_up_ids(client: Client, queue: str) -> None:
    """A rolled-back send_batch: the batch, which is empty, counts as a large one."""
    with client.transaction() as db, db.transaction(force_rollback=True):
        db.execute("select pgque.send_batch(%s, 't', array_fill('x'::text, '{1000}'))", [queue])


def texts(frame: DataFrame) -> list[str]:
    return frame.select("ev_id", "ev_data").toArrow().sort_by("ev_id")["ev_data"].to_pylist()


@pytest.fixture
def three(client: Client) -> Client:
    """A client of a database with three queues; each has a consumer for batches and a stream."""
    for queue in QUEUES[1:]:
        make_queue(client, queue)
    for queue in QUEUES:
        client.register_consumer(queue, "streaming")
    return client


def test_driver_executors_and_client_read_the_same_events_of_their_queue_only(
    three: Client, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nr, sent in enumerate(rounds()):
        publish_round(three, sent, nr)
        for queue in QUEUES:
            batch = claim(three, queue)
            assert [message.payload for message in batch.events()] == sent[queue]
            for most, slices in ((10_000, 1), (-1, 3)):
                monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", most)
                reading = SparkBatch(spark, batch, three.url, slices=slices)
                assert texts(reading.events()) == sent[queue]
                assert reading.event_count == len(sent[queue])
            batch.ack()


@needs_available_now
def test_a_stream_delivers_the_events_of_its_queue_only(
    three: Client, spark: SparkSession, tmp_path: Path
) -> None:
    for nr, sent in enumerate(rounds()):
        publish_round(three, sent, nr)

    for queue in ("orders", "quiet"):
        sink = Sink()
        options = {"queue": queue, "consumer": "streaming"}
        Stream(spark, three.url, tmp_path / queue, **options).drain(sink)
        assert sink.delivered == [text for sent in rounds() for text in sent[queue]]
