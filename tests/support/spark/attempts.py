"""Attempts at batches that a sink stores."""

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import SparkBatch
from tests.support.queues.events import claim, publish

BatchOf = Callable[..., SparkBatch]


def next_batch(client: Client, spark: SparkSession, payloads: Sequence[Payload]) -> SparkBatch:
    """A claimed batch of events with these payloads."""
    publish(client, payloads)
    return SparkBatch(spark, claim(client), client.url)


def again(client: Client, spark: SparkSession, batch: SparkBatch) -> SparkBatch:
    """Another claim of the batch, whose lease the first one has lost."""
    batch.claim.release()
    return SparkBatch(spark, claim(client), client.url)
