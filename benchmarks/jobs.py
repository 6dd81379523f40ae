"""Measures a Consumer against the workers of procrastinate and pgqueuer, with empty handlers.

Each handles the same number of jobs, already in its queue, in one process on the same server. The
rivals handle ten jobs at a time, which is faster for them than one; the Consumer handles one.
"""

import asyncio
import itertools
import time

import procrastinate
import psycopg
from pgqueuer.db import PsycopgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.client import fill, handle_all, without_sync
from benchmarks.measure import Contender, Result, medians, timed
from benchmarks.servers import Connection, connect, value

_JOBS = 2000
_BATCH = 500
_AT_A_TIME = 10


def measure(url: str, *, rounds: int) -> list[Result]:
    """Returns how many times faster a Consumer is."""
    url = without_sync(url)
    with connect(url) as connection:
        asyncio.run(_prepare(url))
        names = (f"jobs{number}" for number in itertools.count())
        contenders = [
            Contender("procrastinate", lambda: asyncio.run(_procrastinate(url))),
            Contender("pgqueuer", lambda: asyncio.run(_pgqueuer(url))),
            Contender("consumer", lambda: _consumer(url, connection, next(names))),
        ]
        costs = medians(contenders, rounds)
    return [
        Result(
            f"Consumer, {_JOBS:,} events",
            f"{rival}'s worker",
            costs[rival] / costs["consumer"],
            ">=",
            None,
            f"{1 / costs['consumer']:,.0f}/{1 / costs[rival]:,.0f} per s",
        )
        for rival in ("procrastinate", "pgqueuer")
    ]


async def _prepare(url: str) -> None:
    async with _app(url).open_async() as app:
        await app.schema_manager.apply_schema_async()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await Queries(PsycopgDriver(connection)).install()


def _app(url: str) -> procrastinate.App:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))


async def _procrastinate(url: str) -> float:
    app = _app(url)

    @app.task(name="nothing")
    async def nothing() -> None:
        pass

    async with app.open_async():
        await nothing.batch_defer_async(*({} for _ in range(_JOBS)))
        start = time.perf_counter()
        await app.run_worker_async(
            wait=False, concurrency=_AT_A_TIME, install_signal_handlers=False
        )
        return (time.perf_counter() - start) / _JOBS


async def _pgqueuer(url: str) -> float:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        manager = QueueManager(Queries(PsycopgDriver(connection)))

        @manager.entrypoint("nothing")
        async def nothing(job: object) -> None:
            pass

        await manager.queries.enqueue(["nothing"] * _JOBS, [None] * _JOBS, [0] * _JOBS)
        start = time.perf_counter()
        await manager.run(batch_size=_AT_A_TIME, mode=QueueExecutionMode.drain)
        return (time.perf_counter() - start) / _JOBS


def _consumer(url: str, connection: Connection, queue: str) -> float:
    value(connection, "select pgque.create_queue(%s)", queue)
    value(connection, "select pgque.register_consumer(%s, 'worker')", queue)
    fill(connection, queue, _JOBS // _BATCH, _BATCH)
    # Includes the time to connect, as for the rivals.
    return timed(lambda: handle_all(url, queue, "worker")) / _JOBS
