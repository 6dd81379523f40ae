"""A client sends within the transaction around it, whoever made it, and within no other one."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from pgque_dagster.client import (
    AsyncBatch,
    AsyncClient,
    Batch,
    Client,
    ConnectionFailed,
    DatabaseError,
    InvalidArgument,
    QueueNotFound,
)
from tests.client.consumer.support import Queue
from tests.support.queues.sql import PATIENCE_SECONDS, Connection
from tests.support.runner.waiting import wait_until


class Undo(Exception):
    """What ends a block that is to be rolled back."""


INSERT = "insert into done (id) values ('1')"


def stored(q: Queue) -> tuple[int, int]:
    """How many rows the application's table and the queue have."""
    return len(q.done()), len(q.sent())


def run(work: Any) -> Any:
    async def in_time() -> Any:
        return await asyncio.wait_for(work, PATIENCE_SECONDS)

    return asyncio.run(in_time())


class TestGivenConnection:
    def test_the_callers_commit_sends_and_its_rollback_does_not(self, q: Queue) -> None:
        with psycopg.connect(q.url) as connection:
            connection.execute(INSERT)
            Client(connection).send("q", "a")
            Client(connection).copy_events("q", ["b"])
            assert stored(q) == (0, 0)
            connection.rollback()
            assert stored(q) == (0, 0)
            connection.execute(INSERT)
            with Client(connection) as client:
                client.send("q", "a")
                client.copy_events("q", ["b"])
            assert not connection.closed
            connection.commit()
        assert stored(q) == (1, 2)

    def test_a_failed_transaction_says_to_roll_back(self, q: Queue) -> None:
        with psycopg.connect(q.url) as connection:
            client = Client(connection)
            with pytest.raises(QueueNotFound):
                client.send("nosuch", "a")
            for send in (client.send, client.send_batch, client.copy_events):
                with pytest.raises(DatabaseError, match=r"aborted.* roll back"):
                    send("q", "a")
            connection.rollback()
            client.send("q", "b")
        assert q.sent() == ["b"]

    def test_a_lease_is_not_kept_alive_before_its_claim_is_committed(self, q: Queue) -> None:
        q.send("a")
        with psycopg.connect(q.url) as connection:
            batch = Client(connection).claim("q", "c", owner="me")
            assert batch is not None
            with pytest.raises(InvalidArgument, match="Commit"), batch.keep_alive():
                pass
            connection.rollback()

        async def main() -> None:
            async with await psycopg.AsyncConnection.connect(q.url) as connection:
                batch = await AsyncClient(connection).claim("q", "c", owner="me")
                assert batch is not None
                with pytest.raises(InvalidArgument, match="Commit"):
                    async with batch.keep_alive():
                        pass
                await connection.commit()
                async with batch.keep_alive() as keeper:
                    assert [message.payload for message in await batch.events()] == ["a"]
                    keeper.check()
                await batch.ack()

        run(main())
        assert q.is_acked()

    def test_what_is_no_connection_is_refused_by_name(self) -> None:
        for face in (Client, AsyncClient):
            with pytest.raises(InvalidArgument, match="Engine is not a URL"):
                face(sa.create_engine("sqlite://"))  # type: ignore[arg-type]


class TestPool:
    def test_threads_use_connections_of_their_own(self, q: Queue) -> None:
        with ConnectionPool(q.url, min_size=2, open=True) as pool:
            client = Client(pool)
            assert client.url and client.user and client.database
            with suppress(Undo), client.transaction() as connection:
                connection.execute(INSERT)
                client.send("q", "a")
                thread = threading.Thread(target=client.send, args=("q", "b"))
                thread.start()
                thread.join(PATIENCE_SECONDS)
                assert q.sent() == ["b"]
                raise Undo
        assert stored(q) == (0, 1)

    def test_an_unreachable_server_is_a_failed_connection(self) -> None:
        brief = {"timeout": 0.1, "reconnect_timeout": 0.1}
        with ConnectionPool("host=/nonexistent", min_size=1, open=False, **brief) as pool:
            pool.open()
            with pytest.raises(ConnectionFailed):
                Client(pool).version()

    def test_an_asynchronous_pool_serves_tasks(self, q: Queue) -> None:
        async def main() -> None:
            async with AsyncConnectionPool(q.url, min_size=2, open=False) as pool:
                client = AsyncClient(pool)
                await asyncio.gather(*(client.send("q", "a") for _ in range(5)))
                q.tick()
                batch = await client.claim("q", "c", owner="me")
                assert batch is not None
                async with batch.keep_alive():
                    await batch.ack()

        run(main())
        assert stored(q) == (0, 5)


@pytest.fixture(params=["a connection", "a pool"])
def any_client(request: pytest.FixtureRequest, q: Queue) -> Iterator[Client]:
    if request.param == "a connection":
        yield q.client
    else:
        with ConnectionPool(q.url, min_size=2, open=True) as pool:
            yield Client(pool)


def a_savepoint(client: Client) -> None:
    with client.transaction():
        client.send("q", "inner")


def a_failed_savepoint(client: Client) -> None:
    with suppress(Undo), client.transaction():
        client.send("q", "inner")
        raise Undo


def copied_events(client: Client) -> None:
    client.copy_events("q", ["inner"])


def an_ack(client: Client) -> None:
    batch = client.claim("q", "c", owner="me")
    assert batch is not None
    batch.ack()


class TestNestedBlocks:
    @pytest.mark.parametrize("inner", [a_savepoint, a_failed_savepoint, copied_events, an_ack])
    def test_a_call_after_an_inner_block_is_part_of_the_transaction(
        self, any_client: Client, q: Queue, inner: Callable[[Client], None]
    ) -> None:
        q.tick()
        with suppress(Undo), any_client.transaction() as connection:
            inner(any_client)
            # Asked before the call, which would otherwise wait for the lock that this thread has.
            assert any_client._in_block() is connection
            any_client.send("q", "after")
            raise Undo
        assert q.sent() == []
        with any_client.transaction():
            a_failed_savepoint(any_client)
            any_client.send("q", "after")
        assert q.sent() == ["after"]

    @pytest.mark.parametrize("use", ["send", "copy_events"])
    def test_an_iterator_that_uses_the_client_is_refused(
        self, any_client: Client, q: Queue, use: str
    ) -> None:
        def payloads() -> Iterator[str]:
            for number in range(3):
                any_client.send("q", "x") if use == "send" else any_client.copy_events("q", ["x"])
                yield str(number)

        with pytest.raises(InvalidArgument, match="busy with copy_events"):
            any_client.copy_events("q", payloads())
        assert any_client.send("q", "after")
        assert q.sent() == ["after"]


class TestTasks:
    def test_a_task_that_uses_the_client_during_the_copy_is_refused(self, q: Queue) -> None:
        async def main() -> None:
            async with AsyncClient(q.url) as client:
                sending: list[asyncio.Task[int]] = []

                def payloads() -> Iterator[str]:
                    for _ in range(3):
                        yield "x" * 70_000
                        if not sending:
                            sending.append(asyncio.create_task(client.send("q", "of the task")))

                async with client.transaction():
                    await client.copy_events("q", payloads())
                    with suppress(InvalidArgument):
                        await sending[0]

        run(main())
        assert len(q.sent()) >= 3

    @pytest.mark.parametrize("times", [1, 2])
    @pytest.mark.parametrize("name", ["copy_events", "send_batch", "consumers"])
    def test_a_cancelled_call_leaves_a_client_that_works_and_no_transaction(
        self, q: Queue, name: str, times: int
    ) -> None:
        q.send(*["x" * 10_000] * 50)
        left = (
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state <> 'idle' and pid <> pg_backend_pid()"
        )

        async def main() -> None:
            async with AsyncClient(q.url) as client:
                for steps in range(12):
                    args = [] if name == "consumers" else [["x" * 10_000] * 500]
                    call = asyncio.create_task(getattr(client, name)("q", *args))
                    for _ in range(times):
                        for _ in range(steps):
                            await asyncio.sleep(0)
                        call.cancel()
                    with suppress(asyncio.CancelledError):
                        await call
                    wait_until(lambda: q.db.value(left) == 0)
                    await client.send("q", "after")

        run(main())
        assert q.sent().count("after") == 12

    @pytest.mark.parametrize("is_pool", [False, True])
    def test_a_call_after_an_inner_block_is_part_of_the_transaction(
        self, q: Queue, is_pool: bool
    ) -> None:
        async def work(client: AsyncClient) -> None:
            with suppress(Undo):
                async with client.transaction():
                    await client.copy_events("q", ["copied"])
                    await client.send("q", "sent")
                    raise Undo

        async def main() -> None:
            if is_pool:
                async with AsyncConnectionPool(q.url, min_size=2, open=False) as pool:
                    await work(AsyncClient(pool))
            else:
                async with AsyncClient(q.url) as client:
                    await work(client)

        run(main())
        assert q.sent() == []

    def test_a_task_sends_in_no_other_tasks_transaction(self, q: Queue) -> None:
        """Neither one that was there before the block, nor one that outlives its own block."""

        async def main() -> None:
            async with AsyncClient(q.url) as client:
                is_open = asyncio.Event()

                async def send(payload: str) -> None:
                    await is_open.wait()
                    await client.send("q", payload)

                before = asyncio.create_task(send("before"))
                async with client.transaction():
                    outlives = asyncio.create_task(send("outlives"))
                with suppress(Undo):
                    async with client.transaction():
                        await client.send("q", "rolled back")
                        is_open.set()
                        await asyncio.wait([before, outlives], timeout=0.2)
                        raise Undo
                await asyncio.gather(before, outlives)

        run(main())
        assert sorted(q.sent()) == ["before", "outlives"]

    def test_tasks_that_a_block_starts_are_part_of_the_transaction(self, q: Queue) -> None:
        async def main() -> None:
            async with AsyncClient(q.url) as client:
                is_inner_over = asyncio.Event()

                async def send() -> None:
                    await is_inner_over.wait()
                    await client.send("q", "of the task")

                with suppress(Undo):
                    async with client.transaction():
                        async with client.transaction():
                            task = asyncio.create_task(send())
                        is_inner_over.set()
                        await asyncio.gather(task, client.send("q", "b"))
                        raise Undo

        run(main())
        assert q.sent() == []


# What a face has of its own: properties that may have to wait for a connection.
SYNC_ONLY = {"url", "user", "database", "reset", "pages"}
ASYNC_ONLY = {"find_url", "open"}
OWN = {"transaction", "keep_alive", "close", "run"}
# What only notes something for the ack, or returns a call.
IO_FREE = {
    *("nack", "dead_letter", "before_ack", "before_publishing", "run_checks"),
    *("own_checks", "plan_call", "history_call", "dump_failures", "load_failures"),
}


class TestFaces:
    """The synchronous and the asynchronous client are one definition with two faces."""

    @pytest.mark.parametrize(("sync", "asynchronous"), [(Client, AsyncClient), (Batch, AsyncBatch)])
    def test_both_faces_have_the_same_methods(self, sync: Any, asynchronous: Any) -> None:
        names, others = ({n for n in dir(face) if n[0] != "_"} for face in (sync, asynchronous))
        assert names - SYNC_ONLY == others - ASYNC_ONLY
        for name in (names & others) - OWN:
            method, coroutine = getattr(sync, name), getattr(asynchronous, name)
            if callable(method):
                assert inspect.signature(method) == inspect.signature(coroutine), name
                assert inspect.getdoc(method) == inspect.getdoc(coroutine), name
                assert not inspect.iscoroutinefunction(method), name
                is_io_free = name in IO_FREE
                assert inspect.iscoroutinefunction(coroutine) is not is_io_free, name

    def test_an_asynchronous_client_sends_claims_and_acks(self, q: Queue) -> None:
        async def insert(connection: Any) -> None:
            await connection.execute(INSERT)

        async def produce_and_consume() -> list[str | None]:
            async with AsyncClient(q.url) as client:
                await client.send("q", {"a": 1})
                with pytest.raises(QueueNotFound, match=r"Did you mean q\?"):
                    await client.send("qq", "x")
                await asyncio.to_thread(Connection.tick, q.db)
                batch = await client.claim("q", "c", owner="me")
                assert batch is not None
                batch.before_ack(insert)
                payloads = [message.payload for message in await batch.events()]
                await batch.ack()
                return payloads

        assert run(produce_and_consume()) == ['{"a":1}']
        assert q.done() == ["1"]
