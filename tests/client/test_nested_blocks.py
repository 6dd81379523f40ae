"""A block within a transaction leaves the transaction to the block around it, and no longer."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from pgque_dagster.client import AsyncClient, Client, InvalidArgument
from tests.support.queues import PATIENCE_SECONDS, Connection, make_queue, rows, tick


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    make_queue(db)


@pytest.fixture(params=["a connection", "a pool"])
def any_client(request: pytest.FixtureRequest, database_url: str) -> Iterator[Client]:
    if request.param == "a connection":
        with Client(database_url) as client:
            yield client
    else:
        with ConnectionPool(database_url, min_size=2, open=True) as pool:
            yield Client(pool)


def a_savepoint(client: Client, db: Connection) -> None:
    with client.transaction():
        client.send("q", "inner")


def copied_events(client: Client, db: Connection) -> None:
    client.copy_events("q", ["inner"])


def an_ack(client: Client, db: Connection) -> None:
    tick(db)
    batch = client.claim("q", "c", owner="me")
    assert batch is not None
    batch.ack()


INNER: list[Callable[[Client, Connection], None]] = [a_savepoint, copied_events, an_ack]


class Undo(Exception):
    """What ends a block that is to be rolled back."""


def payloads(db: Connection) -> list[str]:
    return [payload for (payload,) in rows(db, "select ev_data from pgque.event order by ev_id")]


@pytest.mark.parametrize("inner", INNER)
def test_a_call_after_an_inner_block_is_part_of_the_transaction(
    any_client: Client, db: Connection, inner: Callable[[Client, Connection], None]
) -> None:
    with suppress(Undo), any_client.transaction() as connection:
        inner(any_client, db)
        # Asked before the call, which would otherwise wait for the lock that this thread has.
        assert any_client._held.get() is connection
        any_client.send("q", "after")
        raise Undo
    assert "after" not in payloads(db)


def test_a_call_after_an_inner_block_that_failed_is_part_of_the_transaction(
    any_client: Client, db: Connection
) -> None:
    with any_client.transaction() as connection:
        with suppress(Undo), any_client.transaction():
            any_client.send("q", "inner")
            raise Undo
        assert any_client._held.get() is connection
        any_client.send("q", "after")
    assert payloads(db) == ["after"]


class TestCopying:
    @pytest.mark.parametrize("use", ["send", "copy_events"])
    def test_an_iterator_that_uses_the_client_is_refused(
        self, any_client: Client, db: Connection, use: str
    ) -> None:
        def payloads() -> Iterator[str]:
            for number in range(3):
                any_client.send("q", "x") if use == "send" else any_client.copy_events("q", ["x"])
                yield str(number)

        with pytest.raises(InvalidArgument, match="busy with copy_events"):
            any_client.copy_events("q", payloads())
        assert any_client.send("q", "after")
        assert rows(db, "select ev_data from pgque.event") == [("after",)]

    def test_a_task_that_uses_the_client_during_the_copy_is_refused(
        self, database_url: str, db: Connection
    ) -> None:
        async def main() -> None:
            async with AsyncClient(database_url) as client:
                sending: list[asyncio.Task[int]] = []

                def payloads() -> Iterator[str]:
                    for _ in range(3):
                        yield "x" * 70_000
                        if not sending:
                            sending.append(asyncio.create_task(client.send("q", "of the task")))

                async with client.transaction():
                    await asyncio.wait_for(client.copy_events("q", payloads()), PATIENCE_SECONDS)
                    with suppress(InvalidArgument):
                        await asyncio.wait_for(sending[0], PATIENCE_SECONDS)

        asyncio.run(main())
        assert len(payloads(db)) >= 3


class TestTasks:
    @pytest.mark.parametrize("is_pool", [False, True])
    def test_a_call_after_an_inner_block_is_part_of_the_transaction(
        self, database_url: str, db: Connection, is_pool: bool
    ) -> None:
        async def work(client: AsyncClient) -> None:
            with suppress(Undo):
                async with client.transaction():
                    await client.copy_events("q", ["copied"])
                    await client.send("q", "sent")
                    raise Undo

        async def main() -> None:
            if is_pool:
                async with AsyncConnectionPool(database_url, min_size=2, open=False) as pool:
                    await asyncio.wait_for(work(AsyncClient(pool)), PATIENCE_SECONDS)
            else:
                async with AsyncClient(database_url) as client:
                    await asyncio.wait_for(work(client), PATIENCE_SECONDS)

        asyncio.run(main())
        assert payloads(db) == []

    def test_a_task_that_outlives_the_block_sends_in_no_other_tasks_transaction(
        self, database_url: str, db: Connection
    ) -> None:
        async def main() -> None:
            async with AsyncClient(database_url) as client:
                other_is_open = asyncio.Event()

                async def outlive() -> None:
                    await other_is_open.wait()
                    await client.send("q", "kept")

                async with client.transaction():
                    task = asyncio.create_task(outlive())
                with suppress(Undo):
                    async with client.transaction():
                        other_is_open.set()
                        await asyncio.wait([task], timeout=1)
                        raise Undo
                await asyncio.wait_for(task, PATIENCE_SECONDS)

        asyncio.run(main())
        assert payloads(db) == ["kept"]

    def test_a_task_that_an_inner_block_starts_is_part_of_the_outer_one(
        self, database_url: str, db: Connection
    ) -> None:
        async def main() -> None:
            async with AsyncClient(database_url) as client:
                is_inner_over = asyncio.Event()

                async def send() -> None:
                    await is_inner_over.wait()
                    await client.send("q", "of the task")

                with suppress(Undo):
                    async with client.transaction():
                        async with client.transaction():
                            task = asyncio.create_task(send())
                        is_inner_over.set()
                        await asyncio.wait_for(task, PATIENCE_SECONDS)
                        raise Undo

        asyncio.run(main())
        assert payloads(db) == []
