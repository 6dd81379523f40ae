"""Builders for queues with events in them."""

from collections.abc import Sequence

from pgque_dagster.client import Batch, Client
from pgque_dagster.client.encoding import Payload


def make_queue(client: Client, queue: str = "orders", consumer: str = "revenue") -> None:
    """A queue that ticks whenever it is asked to, with one consumer."""
    client.create_queue(queue)
    client.configure_queue(queue, ticker_max_lag="0")
    client.register_consumer(queue, consumer)


def tick(client: Client, queue: str = "orders") -> None:
    client.force_next_tick(queue)
    client.ticker()


def publish(client: Client, payloads: Sequence[Payload], queue: str = "orders") -> list[int]:
    """Events in a finished batch; returns their ids."""
    ids = [client.send(queue, payload) for payload in payloads]
    tick(client, queue)
    return ids


def claim(client: Client, queue: str = "orders", consumer: str = "revenue") -> Batch:
    batch = client.claim(queue, consumer, owner="a test")
    assert batch is not None
    return batch
