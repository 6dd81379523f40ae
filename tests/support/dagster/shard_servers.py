"""Shards on servers of their own, each with a producer, whose networks and machines break."""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGQUIT
from typing import Any

import psycopg

from pgque_dagster.client import Client
from pgque_dagster.embedded import EmbeddedPostgresError
from tests.conftest import new_server
from tests.support.queues.events import make_queue, tick
from tests.support.queues.sql import connect
from tests.support.runner.waiting import in_threads, wait_until
from tests.support.servers.dumps import restore
from tests.support.servers.machines import IS_ROOT, Clock, Disk, small_disk
from tests.support.servers.networks import Network, network

PAUSE_SECONDS = 0.02  # between two events of a producer
EVENTS = "select ev_id from pgque.get_batch_events(%s)"
_numbers = itertools.count(1)


@dataclass
class Machine:
    """A server, its clock, and the disk of its data if this is root."""

    server: Any
    clock: Clock
    disk: Disk | None
    databases: list[str] = field(default_factory=list)

    def new_database(self, name: str) -> str:
        """Creates a database; returns its URL."""
        with connect(self.server.url) as db:
            db.execute(f"create database {name}".encode())
        self.databases.append(name)
        url: str = self.server.database_url(name)
        return url

    def drop_databases(self) -> None:
        with connect(self.server.url) as db:
            while self.databases:
                db.execute(f"drop database {self.databases.pop()} with (force)".encode())

    def crash(self) -> None:
        """Ends the server at once, until `start`."""
        if self.server.is_running:
            pid = self.server.pid
            with suppress(ProcessLookupError):
                os.kill(pid, SIGQUIT)
            wait_until(lambda: not self.server.is_running)
            self.clock.forget(pid)
        self.server.stop()

    def start(self) -> None:
        """Starts the server if it does not run."""
        if self.disk:
            self.disk.empty()
        if not self.server.is_running:
            self.server.stop()
            with self.clock.used():
                wait_until(self._starts)

    def _starts(self) -> bool:
        # Processes of the one that crashed may prevent it for a moment.
        with suppress(EmbeddedPostgresError):
            self.server.start()
            return True
        return False


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine whose files are in a new folder, while the block runs."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder, "512m")) if IS_ROOT else None
        folder.mkdir(exist_ok=True)
        clock = Clock(folder / "clock")
        with clock.used():
            server = stack.enter_context(new_server(folder))
        yield Machine(server, clock, disk)


@dataclass
class Shard:
    """A database on a server of its own, and who sends to it.

    Args:
        name: of the shard.
        machine: has the database to itself.
        url: of the database, which a restored one replaces.
        network: between Dagster and the server.
        lost: events that its dump lacks.
        again: ids of the events that it delivers again since it was restored.
    """

    name: str
    machine: Machine
    url: str
    network: Network
    lost: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    dumped: Path | None = None
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

    def restore(self) -> None:
        """Replaces the database by its dump."""
        assert self.dumped is not None
        with self.sending:
            before = self.sent()
            name = f"{self.name}_{next(_numbers)}"
            url = self.machine.new_database(name)
            restore(self.machine.server, self.dumped, url)
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
    names: Sequence[str], machines: Sequence[Machine], install: bytes
) -> Iterator[dict[str, Shard]]:
    """Shards with a producer each, which the block stops."""
    until = threading.Event()
    with ExitStack() as stack:
        found = {}
        for name, machine in zip(names, machines, strict=True):
            database = f"{name}_{next(_numbers)}"
            url = machine.new_database(database)
            with connect(url) as db:
                db.execute(install)
                db.execute("create table sent (number bigint)")
            with Client(url) as client:
                make_queue(client)
            found[name] = Shard(name, machine, url, stack.enter_context(network(url)))
        producing = [partial(shard.produce, until) for shard in found.values()]
        try:
            with in_threads(*producing, stop=until.set):
                yield found
        finally:
            for machine in machines:
                machine.start()
                machine.drop_databases()


@contextmanager
def settled(shards: dict[str, Shard]) -> Iterator[None]:
    """Nobody sends while the block runs."""
    with ExitStack() as stack:
        for shard in shards.values():
            stack.enter_context(shard.sending)
        yield
