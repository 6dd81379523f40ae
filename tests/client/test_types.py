"""What a type checker knows of the client's methods: `make lint` checks this file, too."""

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

from pgque_dagster.client import AsyncBatch, AsyncClient, Batch, Client
from pgque_dagster.client.models import QueueStats
from pgque_dagster.client.read_batch import AckResult


def test_methods_of_a_client_return_what_is_declared(database_url: str) -> None:
    with Client(database_url) as client:
        assert_type(client.create_queue("q"), bool)
        assert_type(client.register_consumer("q", "c"), bool)
        assert_type(client.send("q", "a", type="t"), int)
        assert_type(Client.send(client, "q", "b"), int)
        assert_type(client.copy_events("q", ["c"]), int)
        assert_type(client.queue_stats(), list[QueueStats])
        client.force_next_tick("q")
        client.ticker()
        batch = assert_type(client.claim("q", "c", owner="me"), Batch | None)
        assert batch is not None
        assert [message.type for message in batch.events()] == ["t", "default", "default"]
        assert assert_type(batch.ack(), AckResult) == AckResult(0, 0)


def test_those_of_an_asynchronous_client_are_awaited(database_url: str) -> None:
    async def main() -> AckResult:
        async with AsyncClient(database_url) as client:
            await client.create_queue("q")
            await client.register_consumer("q", "c")
            sent = assert_type(client.send("q", "a"), Coroutine[Any, Any, int])
            assert_type(await sent, int)
            await client.force_next_tick("q")
            await client.ticker()
            batch = assert_type(await client.claim("q", "c", owner="me"), AsyncBatch | None)
            assert batch is not None
            return assert_type(await batch.ack(), AckResult)

    assert asyncio.run(main()) == AckResult(0, 0)


def test_wrong_arguments_are_errors_of_types() -> None:
    # An ignored error that does not occur is an error.
    def call(client: Client, other: AsyncClient) -> None:
        client.send("q", "a", typ="t")  # type: ignore[call-arg]
        client.send("q")  # type: ignore[call-arg]
        client.seek(1, "c", "latest")  # type: ignore[arg-type]
        other.send("q", "a")  # type: ignore[unused-coroutine]

    assert callable(call)
