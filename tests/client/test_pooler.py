"""Clients behind a pooler that hands connections out for one transaction each."""

import asyncio
from collections.abc import Iterator

import pytest

from pgque_dagster.client import AsyncClient, Client
from tests.support.queues.sql import Connection
from tests.support.servers.poolers import pooler

pytestmark = pytest.mark.program("pgbouncer")

ROUNDS = 12  # psycopg prepares a statement at its sixth execution


@pytest.fixture
def pooled(db: Connection, database_url: str) -> Iterator[str]:
    db.make_queue()
    with pooler(database_url) as url:
        yield url


def test_clients_that_share_connections_run_their_own_statements(pooled: str) -> None:
    with Client(pooled) as sender, Client(pooled) as ticker, Client(pooled) as reader:
        received = []
        for number in range(ROUNDS):
            sender.send("q", number)
            ticker.force_next_tick("q")
            ticker.ticker()
            with reader.transaction(), sender.transaction():  # takes both connections
                batch = reader.claim("q", "c", owner="me")
                assert batch is not None
                received += [message.payload for message in batch.events()]
                batch.ack()
    assert received == [str(number) for number in range(ROUNDS)]


def test_so_do_those_of_event_loops(pooled: str) -> None:
    async def main() -> list[object]:
        async with AsyncClient(pooled) as one, AsyncClient(pooled) as other:
            sent = [await client.send("q", n) for n in range(ROUNDS) for client in (one, other)]
            assert len(set(sent)) == len(sent)
            return [(await client.status())[0].component for client in (one, other)]

    assert len(asyncio.run(main())) == 2
