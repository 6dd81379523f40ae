"""Every call works on a given connection, whatever its owner has set: both faces, each mode."""

import asyncio
import dataclasses
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg
import psycopg_pool
import pytest
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads

from pgque_dagster.client import (
    AsyncClient,
    Client,
    Event,
    InvalidArgument,
    PgqueError,
    QueueNotFound,
)
from pgque_dagster.client.operation import operation, settled, within
from tests.client.consumer.support import Queue
from tests.support.queues.sql import Connection, connect

LATER = datetime.now(UTC) + timedelta(days=1)
# Their results tell of the moment and of the server.
PASSING = {"status", "health", "metrics", "queue_stats", "consumers", "incarnation", "ticker"}


class Odd(Loader):
    def load(self, data: Buffer) -> object:
        return f"odd {bytes(data)!r}"


class OddDumper(Dumper):
    def dump(self, obj: object) -> bytes:
        return b"odd"


class Mode(NamedTuple):
    """How a connection is opened, what is done to it, and whether it is in pipeline mode."""

    options: Mapping[str, Any] = MappingProxyType({})
    prepare: Callable[[Any], object] = lambda connection: None
    is_pipeline: bool = False
    is_pool: bool = False


def alter_adapters(connection: Any) -> None:
    for name in ("timestamptz", "interval", "int4", "int8", "text", "bool", "uuid", "numeric"):
        for format in (psycopg.pq.Format.TEXT, psycopg.pq.Format.BINARY):
            loader = type("Odd", (Odd,), {"format": format})
            connection.adapters.register_loader(name, loader)
    for kind in (str, int, datetime, timedelta, list):
        connection.adapters.register_dumper(kind, OddDumper)
    set_json_loads(lambda data: "odd", connection)


def settings(**given: str) -> Mode:
    return Mode({"options": " ".join(f"-c {name}={value}" for name, value in given.items())})


async def set_attributes(connection: Any) -> None:
    if isinstance(connection, psycopg.AsyncConnection):
        await connection.set_deferrable(True)
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    else:
        connection.deferrable = True
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


# What does not concern the same part of a call is in one mode.
MODES = {
    "plain": Mode(),
    "client_cursor": Mode({"row_factory": dict_row, "cursor_factory": "ClientCursor"}),
    "raw_cursor": Mode({"cursor_factory": "RawCursor", "prepare_threshold": 0}),
    "pipeline": Mode(is_pipeline=True),
    "pool": Mode({"client_encoding": "latin1"}, is_pool=True),
    "latin1": Mode({"client_encoding": "latin1", "prepare_threshold": None}),
    "sql_ascii": Mode({"client_encoding": "sql_ascii"}),
    "latin1_pipeline": Mode({"client_encoding": "latin1"}, is_pipeline=True),
    "adapters": Mode(prepare=alter_adapters),
    "attributes": Mode(prepare=set_attributes),
    "repeatable_read": settings(
        default_transaction_isolation="repeatable\\ read", timezone="<+03>-3"
    ),
    "settings": settings(
        datestyle="german",
        intervalstyle="sql_standard",
        timezone="Asia/Kathmandu",
        default_transaction_deferrable="on",
        search_path="",
        standard_conforming_strings="off",
        array_nulls="off",
        bytea_output="escape",
    ),
}


def cases() -> Iterator[Any]:
    """Each mode by each face, with autocommit and without: one of the four by default."""
    for number, mode in enumerate(MODES):
        for way, (face, autocommit) in enumerate(
            itertools.product((Client, AsyncClient), (True, False))
        ):
            is_default = way == number % 4 or mode == "pipeline"
            yield pytest.param(
                *(mode, face, autocommit),
                marks=() if is_default else pytest.mark.slow,
                id=f"{mode}-{face.__name__}-{'autocommit' if autocommit else 'in_transaction'}",
            )


def plain(value: Any) -> Any:
    """The value without what differs between two runs."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, plain(list(vars_of(value).values()))]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime | timedelta | uuid.UUID):
        return type(value).__name__
    return value


def vars_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


async def use(client: Any, db: Connection, commit: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """Makes each call, and returns what each returned the last time, or its error."""
    told: dict[str, Any] = {}

    async def call(name: str, *arguments: Any, **named: Any) -> Any:
        try:
            result = await settled(getattr(client, name)(*arguments, **named))
        except PgqueError as error:
            result = error
        await commit()
        shown = (
            type(result).__name__ if name in PASSING or isinstance(result, PgqueError) else result
        )
        told[name] = plain(shown)
        return result

    await call("version")
    await call("incarnation")
    await call("create_queue", "q", max_retries=1)
    await call("configure_queue", "q", ticker_max_count=7)
    await call("pause_queue", "q")
    await call("resume_queue", "q")
    await call("register_consumer", "q", "c")
    await call("send", "q", "\u20ac", type="\u00e9", partition_key="k")
    await call("send_idem", "q", {"a": 1}, "once", ttl=timedelta(hours=2))
    await call("send_batch", "q", ["a", Event("b", type="t", key="\u20ac"), Event("n", key=None)])
    copied = await call("copy_events", "q", ["c\u20ac", b"1"])
    if isinstance(copied, InvalidArgument):
        assert "pipeline" in str(copied)
        assert len(await settled(client.send_batch("q", ["c\u20ac", b"1"]))) == 2
        await commit()
        told["copy_events"] = 2
    await call("send_at", "q", "late", LATER)
    (entry,) = await call("list_scheduled", "q")
    assert (entry.deliver_at, entry.payload) == (LATER, "late")
    await call("cancel_scheduled", entry.id)
    await call("force_next_tick", "q")
    await call("ticker")
    batch = await call("claim", "q", "c", owner="me", ttl=timedelta(hours=1))
    assert abs(batch.lease.until - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    told["claim"] = batch.batch_id
    messages = await settled(batch.events())
    await commit()
    told["events"] = plain(messages)
    assert batch.lease.until.tzinfo is not None
    told["info"] = plain(await settled(batch.info()))
    await settled(batch.renew())
    await commit()
    async with within(batch.keep_alive()) as keeper:
        keeper.check()
    await call("lease_info", "q", "c")
    await call("batch_info", batch.batch_id)
    await call("set_events_aside", "q", "c", [messages[0].msg_id], reason="\u20ac")
    steps: list[object] = []
    batch.before_ack(steps.append)
    batch.dead_letter([messages[1].msg_id], reason="\u20ac")
    batch.nack([messages[2].msg_id], retry_after=timedelta(0), reason=None)
    told["ack"] = plain(await settled(batch.ack()))
    await commit()
    assert steps
    await call("consumers", "q")
    await call("dead_letter_counts", "q")
    (letter, *_) = await call("dead_letters", "q")
    await call("replay_dead_letter", letter.id)
    await call("replay_dead_letters", "q")
    await call("purge_dead_letters", "q", older_than=timedelta(0))
    async with within(client.transaction()):
        await settled(client.send("q", "\u20ac in a block"))
    await commit()
    with pytest.raises(ZeroDivisionError):
        async with within(client.transaction()):
            await settled(client.send("q", "rolled back"))
            raise ZeroDivisionError
    await commit()
    db.tick()
    next_batch = await call("next_batch", "q", "c")
    told["payloads"] = sorted(db.payloads(next_batch))
    await call("finish_batch", next_batch)
    await call("seek", "q", "c", "latest", skip=True)
    await call("maint")
    for name in ("status", "health", "metrics", "queue_stats", "replicas", "start", "stop"):
        await call(name)
    assert isinstance((await settled(client.metrics()))[0].labels, dict)
    await commit()
    await call("unregister_consumer", "q", "c")
    await call("drop_queue", "q", force=True)
    return told


async def nothing() -> None:
    """Commits nothing: each call is its own transaction."""


async def run_in(mode: Mode, face: type, url: str, autocommit: bool) -> dict[str, Any]:
    prefix = "Async" if face is AsyncClient else ""
    options = dict(mode.options)
    if "cursor_factory" in options:
        options["cursor_factory"] = getattr(psycopg, prefix + options["cursor_factory"])
    connections: Any = getattr(psycopg, f"{prefix}Connection")
    async with AsyncExitStack() as stack:
        db = stack.enter_context(connect(url))
        if mode.is_pool:
            pools: Any = getattr(psycopg_pool, f"{prefix}ConnectionPool")
            pool = pools(url, kwargs={"autocommit": autocommit, **options}, open=False)
            await stack.enter_async_context(within(pool))
            return await use(face(pool), db, nothing)
        connection = await settled(connections.connect(url, autocommit=autocommit, **options))
        await stack.enter_async_context(within(connection))
        await settled(mode.prepare(connection))
        encoding = connection.info.encoding
        if mode.is_pipeline:
            await stack.enter_async_context(within(connection.pipeline()))

        async def commit() -> None:
            assert not connection.closed
            if not autocommit:
                await settled(connection.commit())
            assert connection.info.encoding == encoding

        return await use(face(connection), db, commit)


@pytest.fixture(scope="module")
def expected(shared_database_url: str) -> dict[str, Any]:
    """What the calls return on a client's own connection."""
    with Client(shared_database_url) as client, connect(shared_database_url) as db:
        return asyncio.run(use(client, db, nothing))


def test_every_call_is_tried(expected: dict[str, Any]) -> None:
    calls = [name for name in dir(Client) if isinstance(getattr_static(Client, name), operation)]
    assert len(calls) > 30
    assert set(calls) - set(expected) == set()


@pytest.mark.parametrize(("mode", "face", "autocommit"), cases())
def test_every_call_returns_the_same_in_each_mode(
    mode: str, face: type, autocommit: bool, database_url: str, expected: dict[str, Any]
) -> None:
    found = asyncio.run(run_in(MODES[mode], face, database_url, autocommit))
    if mode == "repeatable_read" and not autocommit:
        # Maintenance cannot choose the isolation of the caller's transaction.
        assert found.pop("maint") == "CallRefused"
        found["maint"] = expected["maint"]
    differing = {
        name: (found[name], expected[name]) for name in expected if found[name] != expected[name]
    }
    assert differing == {}


@pytest.mark.parametrize("autocommit", [True, False], ids=["autocommit", "in_transaction"])
@pytest.mark.parametrize("face", [Client, AsyncClient])
def test_an_error_in_a_pipeline_sends_nothing_and_the_pipeline_goes_on(
    face: type, autocommit: bool, q: Queue
) -> None:
    connections: Any = psycopg.AsyncConnection if face is AsyncClient else psycopg.Connection

    async def main() -> None:
        connection = await settled(connections.connect(q.url, autocommit=autocommit))
        client = face(connection)
        async with within(connection), within(connection.pipeline()):
            with pytest.raises(QueueNotFound, match="q2"):
                await settled(client.send("q2", "lost"))
            await settled(connection.rollback())
            # What the caller has sent before has failed, and the next call says so.
            await settled(connection.execute("select 1 / 0"))
            with pytest.raises(psycopg.errors.DivisionByZero):
                await settled(client.send("q", "lost"))
            await settled(connection.rollback())
            async with within(client.transaction()), within(connection.pipeline()):
                await settled(connection.execute("insert into done (id) values ('1')"))
                await settled(client.send("q", "kept"))
            await settled(client.send("q", "last"))
            await settled(connection.commit())

    asyncio.run(main())
    assert q.sent() == ["kept", "last"]
    assert q.db.rows("select id from done") == [("1",)]
