"""Measures the Python client against psycopg without it: sending, copying and consuming."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.producers import PAYLOAD
from benchmarks.servers import Connection, connect, value
from pgque_dagster.client import AsyncClient, Client, Consumer

_SENDS = 1000
_COPIED = 20_000

_SEND = "select pgque.send(%s::text, %s::text, %s::text)"
_COLUMNS = "ev_id, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4"


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns the results for the client."""
    url = without_sync(url)
    with connect(url) as connection:
        value(connection, "select pgque.create_queue('client')")
        return [
            _send(connection, rounds),
            _send_async(url, rounds),
            *_copy(connection, rounds),
            _consume(url, connection, rounds, batches=200, size=500),
            _consume(url, connection, rounds, batches=20, size=5000),
        ]


def without_sync(url: str) -> str:
    """Returns the URL with synchronous_commit off, which a Consumer's connections use, too."""
    return make_conninfo(url, options="-c synchronous_commit=off")


def _send(connection: Connection, rounds: int) -> Result:
    client = Client(connection)

    def bare() -> object:
        return connection.execute(_SEND, ("client", "default", PAYLOAD)).fetchone()

    costs = medians(
        [
            Contender("bare", lambda: timed(bare, _SENDS)),
            Contender("client", lambda: timed(lambda: client.send("client", PAYLOAD), _SENDS)),
        ],
        rounds,
    )
    return _sent("Client.send", costs)


def _send_async(url: str, rounds: int) -> Result:
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(url, autocommit=True))
        client = AsyncClient(connection)

        async def bare() -> None:
            for _ in range(_SENDS):
                cursor = await connection.execute(_SEND, ("client", "default", PAYLOAD))
                await cursor.fetchone()

        async def with_client() -> None:
            for _ in range(_SENDS):
                await client.send("client", PAYLOAD)

        def cost(coroutine: Callable[[], Any]) -> float:
            return timed(lambda: runner.run(coroutine())) / _SENDS

        costs = medians(
            [
                Contender("bare", lambda: cost(bare)),
                Contender("client", lambda: cost(with_client)),
            ],
            rounds,
        )
        runner.run(connection.close())
    return _sent("AsyncClient.send", costs)


def _sent(what: str, costs: dict[str, float]) -> Result:
    return Result(
        what,
        "psycopg's execute",
        costs["bare"] / costs["client"],
        ">=",
        0.9,
        f"{costs['client'] * 1e6:.0f}/{costs['bare'] * 1e6:.0f} µs",
    )


def _copy(connection: Connection, rounds: int) -> list[Result]:
    client = Client(connection)
    payloads = [PAYLOAD] * _COPIED
    encoded = f"default\t{PAYLOAD}\n".encode() * _COPIED

    def copy_into(write: Callable[[psycopg.Copy], object]) -> None:
        table = value(connection, "select pgque.current_event_table('client')")
        with (
            connection.cursor() as cursor,
            cursor.copy(f"copy {table} (ev_type, ev_data) from stdin".encode()) as copy,
        ):
            write(copy)

    def write_rows(copy: psycopg.Copy) -> None:
        for payload in payloads:
            copy.write_row(("default", payload))

    costs = medians(
        [
            Contender("rows", lambda: timed(lambda: copy_into(write_rows))),
            Contender("text", lambda: timed(lambda: copy_into(lambda copy: copy.write(encoded)))),
            Contender("client", lambda: timed(lambda: client.copy_events("client", payloads))),
        ],
        rounds,
    )
    return [
        Result(
            f"copy_events of {_COPIED:,}",
            against,
            costs[name] / costs["client"],
            ">=",
            target,
            f"{costs['client'] * 1000:.0f}/{costs[name] * 1000:.0f} ms",
        )
        for name, against, target in (
            ("rows", "psycopg's write_row", 0.95),
            ("text", "COPY of encoded text", None),
        )
    ]


def fill(connection: Connection, queue: str, batches: int, size: int) -> None:
    """Sends batches of events; the first event has the type `start`, and the last one `end`."""
    send = "select pgque.send_batch(%s, %s, %s)"
    for number in range(batches):
        is_last = number == batches - 1
        if number == 0:
            value(connection, send, queue, "start", [PAYLOAD])
        value(connection, send, queue, "default", [PAYLOAD] * (size - (number == 0) - is_last))
        if is_last:
            value(connection, send, queue, "end", [PAYLOAD])
        value(connection, "select pgque.force_next_tick(%s)", queue)
        value(connection, "select pgque.ticker(%s)", queue)


def handle_all(url: str, queue: str, name: str) -> float:
    """Runs a Consumer with handlers that do nothing, and returns the seconds from start to end."""
    consumer = Consumer(url, queue, name)
    times: list[float] = []

    @consumer.on("start")
    def start(message: object) -> None:
        times.append(time.perf_counter())

    @consumer.on()
    def handle(message: object) -> None:
        pass

    @consumer.on("end")
    def end(message: object) -> None:
        consumer.stop()

    consumer.run()
    return time.perf_counter() - times[0]


def _consume(url: str, connection: Connection, rounds: int, batches: int, size: int) -> Result:
    queue = f"handled_{size}"
    value(connection, "select pgque.create_queue(%s)", queue)
    # One consumer per round, all starting at the first tick.
    readers, consumers = (
        [f"{kind}{number}" for number in range(rounds + 1)] for kind in ("reader", "consumer")
    )
    for name in (*readers, *consumers):
        value(connection, "select pgque.register_consumer(%s, %s)", queue, name)
    fill(connection, queue, batches, size)

    def read() -> float:
        name = readers.pop()
        started = None
        while batch := value(connection, "select pgque.next_batch(%s, %s)", queue, name):
            events: Sequence[object] = connection.execute(
                f"select {_COLUMNS} from pgque.get_batch_events(%s)".encode(), (batch,)
            ).fetchall()
            assert len(events) == size
            started = started or time.perf_counter()
            value(connection, "select pgque.finish_batch(%s)", batch)
        assert started is not None
        return time.perf_counter() - started

    costs = medians(
        [
            Contender("psycopg", read),
            Contender("consumer", lambda: handle_all(url, queue, consumers.pop())),
        ],
        rounds,
    )
    # The first batch is read before the clock starts.
    events = (batches - 1) * size
    return Result(
        f"Consumer, batches of {size:,}",
        "reading the batches by psycopg",
        costs["psycopg"] / costs["consumer"],
        ">=",
        0.7,
        f"{events / costs['consumer']:,.0f}/{events / costs['psycopg']:,.0f} per s",
    )
