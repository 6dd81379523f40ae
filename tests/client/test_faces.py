"""The synchronous and the asynchronous client are one definition with two faces."""

import asyncio
import inspect
from typing import Any

import pytest

from pgque_dagster.client import AsyncBatch, AsyncClient, Batch, Client, QueueNotFound
from tests.support.queues import Connection, make_queue, tick

FACES = [(Client, AsyncClient), (Batch, AsyncBatch)]
# What a face has of its own: properties that may have to wait for a connection.
SYNC_ONLY = {"url", "user", "database", "reset"}
ASYNC_ONLY = {"find_url", "open"}
# What only notes something for the ack, or returns a call.
IO_FREE = {"nack", "dead_letter", "before_ack", "before_publishing", "run_checks", "plan_call"}


def public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "asynchronous"), FACES)
def test_both_faces_have_the_same_methods(sync: type, asynchronous: type) -> None:
    assert public(sync) - SYNC_ONLY == public(asynchronous) - ASYNC_ONLY


@pytest.mark.parametrize(("sync", "asynchronous"), FACES)
def test_methods_of_both_faces_have_the_same_parameters_and_docs(
    sync: Any, asynchronous: Any
) -> None:
    for name in public(sync) & public(asynchronous):
        method, coroutine = getattr(sync, name), getattr(asynchronous, name)
        if not callable(method) or name in ("transaction", "keep_alive", "close", "run"):
            continue
        assert inspect.signature(method) == inspect.signature(coroutine), name
        assert inspect.getdoc(method) == inspect.getdoc(coroutine), name
        assert not inspect.iscoroutinefunction(method), name
        is_io_free = name in IO_FREE
        assert inspect.iscoroutinefunction(coroutine) is not is_io_free, name


def test_an_asynchronous_client_sends_claims_and_acks(database_url: str, db: Connection) -> None:
    make_queue(db)

    async def produce_and_consume() -> list[str | None]:
        async with AsyncClient(database_url) as client:
            await client.send("q", {"a": 1})
            await asyncio.to_thread(tick, db)
            batch = await client.claim("q", "c", owner="me")
            assert batch is not None
            async with batch.keep_alive() as keeper:
                payloads = [message.payload for message in await batch.events()]
                keeper.check()
            await batch.ack()
            return payloads

    assert asyncio.run(produce_and_consume()) == ['{"a":1}']


def test_what_runs_before_an_ack_may_be_a_coroutine_function(
    database_url: str, db: Connection
) -> None:
    make_queue(db)
    db.execute("create table done (id int)")
    tick(db)

    async def insert(connection: Any) -> None:
        await connection.execute("insert into done values (1)")

    async def consume() -> None:
        async with AsyncClient(database_url) as client:
            batch = await client.claim("q", "c", owner="me")
            assert batch is not None
            batch.before_ack(insert)
            await batch.ack()

    asyncio.run(consume())
    assert db.execute("select id from done").fetchall() == [(1,)]


def test_a_task_does_not_become_part_of_another_tasks_transaction(
    database_url: str, db: Connection
) -> None:
    make_queue(db)

    async def main() -> None:
        async with AsyncClient(database_url) as client:

            async def fail() -> None:
                async with client.transaction():
                    await client.send("q", "rolled back")
                    sender.set()
                    await asyncio.sleep(0.1)
                    raise RuntimeError

            async def send() -> None:
                await sender.wait()
                await client.send("q", "kept")

            sender = asyncio.Event()
            await asyncio.gather(fail(), send(), return_exceptions=True)

    asyncio.run(main())
    tick(db)
    assert [row[0] for row in db.execute("select ev_data from pgque.event").fetchall()] == ["kept"]


def test_tasks_that_a_transaction_starts_are_part_of_it(database_url: str, db: Connection) -> None:
    make_queue(db)

    async def main() -> None:
        async with AsyncClient(database_url) as client, client.transaction():
            await asyncio.gather(client.send("q", "a"), client.send("q", "b"))
            assert db.execute("select from pgque.event").fetchall() == []

    asyncio.run(main())
    assert len(db.execute("select from pgque.event").fetchall()) == 2


def test_an_asynchronous_client_that_is_not_open_says_what_to_do() -> None:
    with pytest.raises(Exception, match="async with AsyncClient"):
        asyncio.run(AsyncClient("dbname=x").version())


@pytest.mark.parametrize("name", ["order", "Orders", "ordres"])
def test_an_unknown_queue_suggests_near_names(client: Client, db: Connection, name: str) -> None:
    make_queue(db, "orders")
    make_queue(db, "invoices")
    with pytest.raises(QueueNotFound, match=r"Did you mean orders\?"):
        client.send(name, "x")
    with pytest.raises(QueueNotFound) as far:
        client.send("xyz", "x")
    assert "Did you mean" not in str(far.value)


def test_an_asynchronous_client_suggests_near_names(database_url: str, db: Connection) -> None:
    make_queue(db, "orders")

    async def send() -> None:
        async with AsyncClient(database_url) as client:
            await client.send("order", "x")

    with pytest.raises(QueueNotFound, match=r"Did you mean orders\?"):
        asyncio.run(send())
