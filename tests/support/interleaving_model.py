"""The model beside the queues: what each consumer must get, and who holds which batch.

It is made of lists and counters. What a producer sends counts from its commit on.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psycopg
from hypothesis import strategies as st

from tests.conftest import INSTALL_SQL
from tests.support.queues import Connection, rows, value
from tests.support.readings import Event
from tests.support.released import RELEASES

INSTALL = INSTALL_SQL.read_bytes()
OLDEST = RELEASES[0].sql()

MAX_RETRIES = 2
QUEUES = ("q", "r", "quiet")
BUSY = st.sampled_from(["q", "q", "q", "q", "r", "r", "quiet"])  # the queues, as they are used
NEXT = "select batch_id from pgque.next_batch_custom(%s, %s, null::interval, null, null, %s)"
NEXT_OF_WORKER = "select pgque.next_batch(%s, %s, %s, %s::interval)"
ALL_OF_WORKER = """
select batch_id from pgque.next_batch_custom(%(queue)s, %(name)s, %(worker)s, null, null, (
    select max(t.tick_time) - max(t.tick_time) filter (where t.tick_id = s.sub_last_tick)
    from pgque.subscription s
    join pgque.queue q on q.queue_id = s.sub_queue and q.queue_name = %(queue)s
    join pgque.consumer c on c.co_id = s.sub_consumer and c.co_name = %(name)s
    join pgque.tick t on t.tick_queue = s.sub_queue
), %(dead)s::interval)
"""


@dataclass
class Producer:
    """An open transaction, with its events, each with its queue, by savepoint."""

    db: Connection
    name: str
    levels: list[list[tuple[str, str]]] = field(default_factory=list)
    stale_tables: dict[str, str] = field(default_factory=dict)
    has_ticked: bool = False
    is_prepared: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.levels)

    def begin(self, level: str = "read committed") -> None:
        self.db.execute(f"begin isolation level {level}".encode())
        value(self.db, "select count(*) from pgque.queue")
        self.levels = [[]]

    def sent(self, queue: str, *payloads: str) -> None:
        self.levels[-1] += [(queue, payload) for payload in payloads]

    def end(self, statement: str) -> list[tuple[str, str]]:
        """Ends the transaction; returns what it had sent."""
        if self.is_prepared:
            statement += f" prepared '{self.name}'"
        self.db.execute(statement.encode())
        sent = [event for level in self.levels for event in level]
        self.levels, self.has_ticked, self.is_prepared = [], False, False
        return sent


@dataclass
class Consumer:
    """What a consumer must get, what it got, and what it gave up."""

    queue: str
    name: str
    expected: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)

    def deliver(self, events: list[Event]) -> None:
        self.delivered.update(event[5] for event in events)
        assert self.delivered <= self.expected, "an event came twice, or was not sent here"

    def fail(self, event: Event, *, for_good: bool) -> bool:
        """Expects an event that failed once more, or no more; returns whether once more."""
        again = not for_good and (event[3] or 0) < MAX_RETRIES
        (self.expected if again else self.dead)[event[5]] += 1
        return again

    def replay(self) -> None:
        self.expected.update(self.dead)
        self.dead.clear()


@dataclass
class Holder:
    """Who may hold a batch: a normal consumer, or one worker of a cooperative one."""

    consumer: Consumer
    worker: str | None = None
    batch: int | None = None
    events: list[Event] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)

    def open(self, db: Connection, maximum: int | None, dead: str | None) -> int | None:
        """The open or next batch. Of a worker any maximum means all ticks that are left."""
        queue, name = self.consumer.queue, self.consumer.name
        found: int | None
        if self.worker is None:
            found = value(db, NEXT, queue, name, maximum)
        elif maximum is None:
            found = value(db, NEXT_OF_WORKER, queue, name, self.worker, dead)
        else:
            params = {"queue": queue, "name": name, "worker": self.worker, "dead": dead}
            ((found,),) = db.execute(ALL_OF_WORKER.encode(), params).fetchall()
        return found

    def take(self, batch: int, events: list[Event]) -> None:
        assert self.batch in (None, batch), "an open batch was not given again"
        assert self.batch is None or events == self.events, "a batch was not the same again"
        self.batch, self.events = batch, events

    def drop(self) -> None:
        self.batch, self.events, self.settled = None, [], set()

    def every(self, nth: int) -> list[Event]:
        """Every nth event of the batch that has not been given back yet; none for 0."""
        chosen = self.events[::nth] if nth else []
        return [event for event in chosen if event[0] not in self.settled]


class Stage:
    """The connections of one test, which its examples use one after the other."""

    def __init__(self, another: Callable[[], Connection]) -> None:
        self.db, self.reader, self.installer = another(), another(), another()
        self.installer.execute("set lock_timeout = '100ms'")
        self.producers = [another() for _ in range(3)]
        self.examples = self.steps = self.events = 0
        self.is_old = False

    def install_release(self) -> None:
        """Puts the oldest release in place of what is there."""
        self.db.execute("drop schema pgque cascade")
        self.db.execute(OLDEST)
        self.is_old = True

    def install(self) -> bool:
        """Installs what is to be released; false, with nothing changed, when locks hold it up."""
        try:
            self.installer.execute(INSTALL)
        except psycopg.errors.LockNotAvailable:
            self.installer.execute("rollback")
            return False
        self.is_old = False
        return True

    def clear(self) -> None:
        self.examples += 1
        for connection in (self.db, self.installer, *self.producers):
            connection.execute("rollback")
        for (gid,) in rows(self.db, "select gid from pg_prepared_xacts"):
            self.db.execute(f"rollback prepared '{gid}'".encode())
        for (queue,) in rows(self.db, "select queue_name from pgque.queue"):
            value(self.db, "select pgque.drop_queue(%s, true)", queue)


def now() -> datetime:
    return datetime.now(UTC)
