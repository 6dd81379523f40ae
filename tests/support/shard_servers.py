"""Shards on servers of their own, each with a producer, behind networks that break."""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGQUIT
from typing import Any

import psycopg

from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgresError
from tests.support.dumps import restore
from tests.support.events import make_queue, tick
from tests.support.networks import Network, network
from tests.support.queues import connect
from tests.support.signals import wait_until

PAUSE_SECONDS = 0.02  # between two events of a producer
EVENTS = "select ev_id from pgque.get_batch_events(%s)"
_numbers = itertools.count(1)


@dataclass
class Shard:
    """A database on a server of its own, and who sends to it.

    Args:
        name: of the shard.
        server: has the database to itself.
        url: of the database, which a restored one replaces.
        network: between Dagster and the server.
        lost: events that its dump lacks.
        again: ids of the events that it delivers again since it was restored.
    """

    name: str
    server: Any
    url: str
    network: Network
    lost: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    dumped: Path | None = None
    is_down: bool = False
    sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url_for_runs(self) -> str:
        return self.network.url(self.url)

    def produce(self, until: threading.Event) -> None:
        """Sends numbers, some to a transaction, and ticks; goes on after the server was down."""
        while not until.is_set():
            with suppress(psycopg.OperationalError), connect(self.url) as db:
                url = self.url
                while url == self.url and not until.is_set():
                    with self.sending:
                        for _ in range(5):
                            self.send(db)
                            time.sleep(PAUSE_SECONDS)
                        db.execute("select pgque.force_next_tick('orders'), pgque.ticker('orders')")
            time.sleep(PAUSE_SECONDS)

    def send(self, db: psycopg.Connection) -> None:
        number = next(_numbers)
        with db.transaction():
            db.execute("insert into sent values (%s)", [number])
            event = json.dumps({"number": number})
            db.execute("select pgque.send('orders', %s)", [event])

    def sent(self) -> set[int]:
        with connect(self.url) as db:
            return {number for (number,) in db.execute("select number from sent")}

    def crash(self) -> None:
        """Ends the server at once, until `start`."""
        self.is_down = True
        os.kill(self.server.pid, SIGQUIT)
        wait_until(lambda: not self.server.is_running)
        self.server.stop()

    def start(self) -> None:
        if self.is_down:
            wait_until(self._starts)
            self.is_down = False

    def _starts(self) -> bool:
        # Processes of the one that crashed may prevent it for a moment.
        with suppress(EmbeddedPostgresError):
            self.server.start()
            return True
        return False

    def restore(self) -> None:
        """Replaces the database by its dump."""
        assert self.dumped is not None
        with self.sending:
            before = self.sent()
            name = f"{self.name}_{next(_numbers)}"
            with connect(self.server.url) as db:
                db.execute(f"create database {name}".encode())
            url = self.server.database_url(name)
            restore(self.server, self.dumped, url)
            with connect(url) as db:
                db.execute("select pgque.adopt_restored_database()")
            self.url = url
            self.lost |= before - self.sent()
            with Client(url) as client, connect(url) as db:
                tick(client)
                batch = client.next_batch("orders", "revenue")
                self.again = [id for (id,) in db.execute(EVENTS, [batch])]


@contextmanager
def loaded(
    names: Sequence[str], servers: Sequence[Any], install: bytes
) -> Iterator[dict[str, Shard]]:
    """Shards with a producer each, which the block stops."""
    until = threading.Event()
    threads = []
    with ExitStack() as stack:
        found = {}
        for name, server in zip(names, servers, strict=True):
            database = f"{name}_{next(_numbers)}"
            with connect(server.url) as db:
                db.execute(f"create database {database}".encode())
            url = server.database_url(database)
            with connect(url) as db:
                db.execute(install)
                db.execute("create table sent (number bigint)")
            with Client(url) as client:
                make_queue(client)
            found[name] = Shard(name, server, url, stack.enter_context(network(url)))
            threads.append(threading.Thread(target=found[name].produce, args=[until]))
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            until.set()
            for thread in threads:
                thread.join()


@contextmanager
def settled(shards: dict[str, Shard]) -> Iterator[None]:
    """Nobody sends while the block runs."""
    with ExitStack() as stack:
        for shard in shards.values():
            stack.enter_context(shard.sending)
        yield
