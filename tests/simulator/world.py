"""The world of one run: sessions on a database, the model beside it, and who is in the middle."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeVar

import psycopg

from .model import Consumer, Divergence, Place, Queue, Sent
from .sessions import Connection, Paused, Session, Settled

if TYPE_CHECKING:
    from .standby import Standby

Work = Coroutine[Session | Settled | Paused, None, None]
Item = TypeVar("Item")
Crash = Callable[[], None]

QUEUES = ("busy", "other", "quiet")
MAX_RETRIES = 2
# After so many steps a statement that still waits is cancelled, before a lock's time-out ends it
# at a moment that no seed repeats.
PATIENCE_STEPS = 25
# Cancelled, session ended, serialization failure, deadlock, lock not available.
DISTURBED = ("57014", "57P01", "57P02", "57P03", "40001", "40P01", "55P03")
# Batch not open, leased by another, its events gone for an older snapshot, lease lost, batch open.
BEATEN = ("PQ003", "PQ004", "PQ009", "PQ012", "PQ016")


_LAST_TICKS = """
select q.queue_name, (select max(t.tick_id) from pgque.tick t where t.tick_queue = q.queue_id)
from pgque.queue q
"""


_WAIT = "select pid from pg_stat_activity where wait_event_type = 'Lock' and pid = any(%s)"


class Choices:
    """What a step decides by: numbers from its own seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def one(self, items: Sequence[Item]) -> Item:
        """Returns one of the items, of which there is at least one."""
        return items[self._random.randrange(len(items))]

    def upto(self, most: int) -> int:
        """Returns a number from 1 to `most`."""
        return self._random.randint(1, most)

    def percent(self, chance: int) -> bool:
        """Returns true by this chance."""
        return self._random.randrange(100) < chance

    def some(self, items: Sequence[Item], chance: int) -> list[Item]:
        """Returns each of the items by this chance."""
        return [item for item in items if self.percent(chance)]


@dataclass
class Transaction:
    """The open transaction of a producer: what it sent, and its ticks, by savepoint."""

    session: Session
    levels: list[list[Sent]]
    isolation: str
    low: dict[str, int]
    late: set[str]
    ticked: bool = False
    ticks: list[tuple[int, str, int, Place]] = field(default_factory=list)
    gid: str | None = None


@dataclass
class Holder:
    """Who may hold a batch: a consumer, one subconsumer of it, or one owner of its leases."""

    consumer: Consumer
    kind: str
    worker: str = ""
    batch: int | None = None
    epoch: int | None = None
    # Steps that open a batch for it now, and those that were cut off, so that it may hold a batch
    # that nobody noted.
    opening: set[int] = field(default_factory=set)
    cut_off: set[int] = field(default_factory=set)


@dataclass
class Task:
    """What a step does, by one session; it may wait for a lock meanwhile."""

    name: str
    session: Session
    work: Work
    step: int
    mark: int


class World:
    """Sessions, model and scheduler. Without `crash`, no server is stopped."""

    def __init__(self, url: str, sql: bytes, crash: Crash | None = None) -> None:
        self.url = url
        self.sql = sql
        self.crash = crash
        self.watch = self.connect("watch")
        self.producers = [self._session(f"producer_{n}") for n in range(3)]
        self.workers = [self._session(f"worker_{n}") for n in range(3)]
        others = [
            self._session(name) for name in ("ticker", "keeper", "blocker", "dumper", "watcher")
        ]
        self.ticker, self.keeper, self.blocker, self.dumper, self.watcher = others
        self.sessions = [*self.producers, *self.workers, *others]
        self.queues: dict[str, Queue] = {}
        self.consumers: list[Consumer] = []
        self.holders: list[Holder] = []
        self.slots: dict[tuple[str, int], Consumer] = {}
        self.transactions: dict[str, Transaction] = {}
        self.prepared: list[Transaction] = []
        self.counts: dict[str, int] = {}
        self.steps = 0
        # What a dump has to have, if its snapshot is still waited for.
        self.dump: dict[tuple[str, str], set[str]] | None = None
        self.is_patient = True
        self.standby: Standby | None = None
        self.copies: list[str] = []
        self._sent = 0
        self._waiting: list[Task] = []
        self._settling: list[Task] = []
        self._paused: list[tuple[int, Task]] = []
        self._is_settling = False
        self._woken = 0

    def connect(self, name: str) -> Connection:
        """Opens a connection."""
        return psycopg.connect(
            self.url,
            autocommit=True,
            options=f"-c application_name=simulator_{name} -c deadlock_timeout=20ms"
            " -c lock_timeout=60s",
        )

    def _session(self, name: str) -> Session:
        return Session(name, self.connect, lambda: self.watch)

    # The scheduler

    def step(self, name: str, session: Session, work: Work) -> None:
        """Runs a task until it ends or waits, then whatever else can go on."""
        self.steps += 1
        self.counts[name] = self.counts.get(name, 0) + 1
        self._advance(Task(name, session, work, self.steps, self._woken))
        self._settle()
        for due in [pause for pause in self._paused if pause[0] <= self.steps]:
            self._paused.remove(due)
            self._advance(due[1])
            self._settle()
        overdue = [task for task in self._waiting if task.step + PATIENCE_STEPS <= self.steps]
        for task in overdue:
            if task.session.is_waiting:
                self.cancel(task.session)
        if overdue:
            self._settle()

    def cancel(self, session: Session) -> None:
        """Cancels the statement of a session that waits, and lets it notice."""
        session.cancel()
        while not session.is_done:
            session.waits()
        self._settle()

    def free(self, sessions: Sequence[Session]) -> list[Session]:
        """Returns those sessions that no task is busy with."""
        paused = [task for _, task in self._paused]
        busy = {id(task.session) for task in (*self._waiting, *self._settling, *paused)}
        return [session for session in sessions if id(session) not in busy]

    def waiting(self) -> list[Session]:
        """Returns the sessions whose statements wait for locks."""
        return [task.session for task in self._waiting]

    @property
    def mark(self) -> int:
        """A number that changes whenever a task begins to wait or goes on."""
        return self._woken

    def is_alone(self, mark: int) -> bool:
        """Whether no task waited or went on since the mark was taken, nor waits now."""
        return self._woken == mark and not self._waiting and not self._settling

    async def settled(self) -> None:
        """Lets all that was woken up go on first, so that the model knows what they committed."""
        if self._is_settling:
            await Settled()

    def _advance(self, task: Task) -> None:
        try:
            waiting_for = task.work.send(None)
        except StopIteration:
            return
        except psycopg.Error as error:
            alone = self.is_alone(task.mark)
            if error.sqlstate in BEATEN and alone:
                raise Divergence(f"{task.name}: {error}") from error
            if error.sqlstate not in (None, *DISTURBED, *BEATEN):
                raise Divergence(f"{task.name}: {error.sqlstate} {error}") from error
            self.transactions.pop(task.session.name, None)
            task.session.refresh()
            return
        self._woken += 1
        if isinstance(waiting_for, Paused):
            self._paused.append((self.steps + waiting_for.steps, task))
        else:
            (self._settling if isinstance(waiting_for, Settled) else self._waiting).append(task)

    def _settle(self) -> None:
        """Lets go on whoever waits no longer, until all wait or are done."""
        self._is_settling = True
        try:
            while self._go_on():
                self._woken += 1
        finally:
            self._is_settling = False

    def _go_on(self) -> bool:
        pids = [task.session.pid for task in self._waiting]
        still = {pid for (pid,) in self.watch.execute(_WAIT, [pids])} if pids else set()
        for task in self._waiting:
            if task.session.is_done or (task.session.pid not in still and not task.session.waits()):
                self._waiting.remove(task)
                self._advance(task)
                return True
        if self._settling:
            self._advance(self._settling.pop(0))
            return True
        return False

    def forget(self, session: Session) -> None:
        """Ends what a session that waits for nothing has open, and the task that it pauses in."""
        self.transactions.pop(session.name, None)
        for pause in [pause for pause in self._paused if pause[1].session is session]:
            self._paused.remove(pause)
            pause[1].work.close()
        session.refresh()

    def finish(self) -> None:
        """Cancels what waits, and ends all transactions, except for that of a dump."""
        while self._waiting:
            self.cancel(self._waiting[0].session)
        for session in self.sessions:
            if session is not self.dumper:
                self.forget(session)
        for transaction in self.prepared:
            self.watch.execute(f"rollback prepared '{transaction.gid}'".encode())
        self.prepared.clear()

    def lose_connections(self) -> None:
        """Lets all sessions notice that the server stopped, and connects them again."""
        self.dump = None
        self.watch.close()
        self.watch = self.connect("watch")
        for session in self.sessions:
            if not session.is_waiting:
                self.forget(session)
        self._settle()

    def move(self, url: str) -> None:
        """Connects all sessions, which have nothing open, to another database."""
        self.url, self.dump = url, None
        self.watch.close()
        self.watch = self.connect("watch")
        for session in self.sessions:
            session.db.close()
            session.refresh()

    def close(self) -> None:
        """Ends all sessions."""
        for session in self.waiting():
            session.cancel()
        for session in self.sessions:
            session.close()
        left = "select gid from pg_prepared_xacts where database = current_database()"
        for (gid,) in self.watch.execute(left.encode()).fetchall():
            self.watch.execute(f"rollback prepared '{gid}'".encode())
        self.watch.close()

    # The model

    def check(self, holds: bool, otherwise: str) -> None:
        """Raises `Divergence` unless something holds."""
        if not holds:
            raise Divergence(otherwise)

    def has_unknown(self, consumer: Consumer) -> bool:
        """Says whether somebody may hold a batch of a consumer that nobody noted."""
        holders = [holder for holder in self.holders if holder.consumer is consumer]
        return any(holder.opening or holder.cut_off for holder in holders)

    def replace(self, consumer: Consumer, fresh: Consumer) -> None:
        """Puts another consumer in the place of one that holds nothing."""
        if consumer in self.consumers:
            self.consumers[self.consumers.index(consumer)] = fresh
        for holder in self.holders:
            if holder.consumer is consumer:
                holder.consumer, holder.batch, holder.epoch = fresh, None, None

    def new_payload(self) -> str:
        """Returns a payload that no other event has."""
        self._sent += 1
        return f"event {self._sent}"

    def committed(self, transaction: Transaction) -> None:
        """Adds what a transaction sent to the queues, and its ticks."""
        for _, queue, tick, place in transaction.ticks:
            self.queues[queue].add_tick(tick, place)
        for sent in (sent for level in transaction.levels for sent in level):
            if sent.payload in transaction.late:
                self.queues[sent.queue].late.add(sent.payload)
                for consumer in self.consumers:
                    if consumer.queue.name == sent.queue:
                        consumer.expect_late(sent)
            else:
                self.queues[sent.queue].log.append(sent)

    def lengths(self) -> dict[str, int]:
        """Returns how many events each queue has now."""
        return {name: len(queue.log) for name, queue in self.queues.items()}

    async def last_ticks(self, session: Session) -> dict[str, int]:
        """Returns the number of the last tick of each queue."""
        return dict(await session.run(_LAST_TICKS))

    async def note_ticks(
        self, session: Session, before: dict[str, int], low: dict[str, int]
    ) -> None:
        """Notes the ticks that came after others, when the queues had `low` events or later."""
        after = await self.last_ticks(session)
        await self.settled()
        for name, tick in after.items():
            if tick > before[name]:
                queue = self.queues[name]
                queue.add_tick(tick, Place(low[name], len(queue.log)))
