"""Replicas of tables whose writers, runs and sessions do and suffer what a seed says.

In the end, each replica must have the rows of its table, and nothing may stop the runs for good.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors as pg

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.replicas.capture import copy_again
from pgque_dagster.client.replicas.deletes import HARD, HISTORY
from tests.client.consumer.support import expire_leases
from tests.support.replicas.faults import Faults, Killed, die
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    LakeReplication,
    PostgresReplication,
    Replication,
    Row,
    with_columns_of,
)
from tests.support.replicas.writers import (
    APPLICATION,
    COLUMNS,
    KEYS,
    SCHEMA,
    TABLES,
    Writers,
    altering,
)
from tests.support.runner.waiting import in_threads

# A copy begins anew if the table was altered or truncated meanwhile, which writers may do.
_BEGINS_ANEW = "was altered or truncated while it was copied"
# As many as it takes to copy all parts.
_ATTEMPTS = 40
# Of each writer at each step.
_TRANSACTIONS = 8
_OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    f" and backend_type = 'client backend' and application_name <> '{APPLICATION}'"
    " and pid <> pg_backend_pid()"
)


class Model:
    """One seed.

    Args:
        replication: the replicas.
        faults: what may happen at points of an attempt.
        seed: from which everything follows but the order in which writers come.

    Attributes:
        happened: how often each fault came to pass.
    """

    def __init__(self, replication: Replication, faults: Faults, seed: int) -> None:
        self._replication, self._faults = replication, faults
        self._seed, self._chance = seed, random.Random(seed)
        self._numbers = iter(range(2, 10**6))
        self._broken: list[Exception] = []
        # What tables had at ticks.
        self._seen: list[tuple[int, str, list[Row]]] = []
        self.happened: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """Lets writers write while attempts fail, and compares all rows at times and in the end."""
        self._replication.sql(SCHEMA)
        self._replication.capture(*TABLES)
        self.go_on(steps)

    def go_on(self, steps: int) -> None:
        """Does the same with tables that are there."""
        writers = Writers(self._replication.url, f"{self._seed}/{next(self._numbers)}")
        with writers.running():
            for step in range(steps):
                writers.grant(_TRANSACTIONS)
                self._step()
                if step % 3 == 2:
                    self._verify()
            with writers.paused():
                self._check()
            writers.grant(_TRANSACTIONS)
            self._step()
        self._check()
        assert self._replication.verify(self._chance.choice(TABLES)).is_equal
        assert not self._broken

    def _check(self) -> None:
        """Compares all rows, and with those that are kept what tables had before."""
        self._settle()
        replication, deletes = self._replication, self._replication.target.deletes
        tick = replication.last_tick()
        for table in TABLES:
            rows = replication.source(table)
            live = replication.live(table)
            assert (live if deletes == HARD else with_columns_of(live, rows)) == rows
            # Others may be renamed.
            names = COLUMNS[table]
            self._seen.append((tick, table, with_columns_of(rows, [dict.fromkeys(names)])))
        for tick, table, rows in self._seen if deletes != HARD else ():
            if deletes == HISTORY:
                assert with_columns_of(replication.at(table, tick), rows) == rows, tick
            keys = [tuple(row[name] for name in KEYS[table]) for row in replication.replica(table)]
            assert {tuple(row[name] for name in KEYS[table]) for row in rows} <= set(keys)
            assert deletes == HISTORY or len(set(keys)) == len(keys)

    def _step(self) -> None:
        """Makes an attempt at the next batch, in which something happens."""
        threading.Event().wait(self._chance.random() / 5)
        self._replication.tick()
        if self._chance.random() < 0.1:
            with Client(self._replication.url) as client:
                copy_again(client, QUEUE, CONSUMER, self._chance.choice(TABLES))
        if self._chance.random() < 0.15:
            with self._excused("terminate sessions now and then"), self._terminating():
                self._attempt()
        else:
            point, action = self._chance.choice(self._faults.points), self._action()
            self._faults.set(point, self._chance.choice((0, 0, 1, 2)), action)
            with self._excused(f"{action.__name__.strip('_')} {point}"):
                self._attempt()
            self._faults.clear()
        if self._chance.random() < 0.5:
            self._settle()

    def _action(self) -> Callable[[], object]:
        """Chooses what happens at a point."""
        actions = [die, self._terminate, self._take_over, self._alter]
        if isinstance(self._replication, LakeReplication):
            actions.append(self._compact)
        return self._chance.choice([die, self._take_over, *actions])

    @contextmanager
    def _excused(self, what: str) -> Iterator[None]:
        """Lets the attempt in the block fail, if something happened to it."""
        try:
            yield
        except (Exception, Killed) as error:
            if not self._faults.has_fired and _BEGINS_ANEW not in str(error):
                raise
        if self._faults.has_fired:
            self.happened[what] += 1

    def _settle(self) -> None:
        """Applies all batches, while nothing happens but what writers do."""
        self._replication.tick()
        for _ in range(_ATTEMPTS):
            try:
                while self._attempt():
                    pass
            except InvalidArgument as error:
                if _BEGINS_ANEW not in str(error):
                    raise
            else:
                if not self._end_pauses():
                    return
        raise AssertionError("the tables cannot be copied")

    def _end_pauses(self) -> bool:
        """Has tables that are set apart tried with the next batch. Returns whether any does."""
        with self._replication.connect() as db:
            found = db.execute("update pgque.replica_apart set retry_at = clock_timestamp()")
        if found.rowcount:
            self._replication.tick()
        return bool(found.rowcount)

    def _attempt(self) -> bool:
        """Takes the open or next batch from whoever has it. Returns whether there was one."""
        replication = self._replication
        with replication.connect() as db:
            expire_leases(db)
        with Client(replication.url) as client:
            claim = client.claim(QUEUE, CONSUMER, owner=f"attempt {next(self._numbers)}")
            if claim is None:
                return False
            replication.replicate(replication.batch_of(claim), replication.tables)
            claim.ack()
        return True

    def _terminate(self) -> None:
        """Ends all sessions of the attempt, as a restart of the servers does."""
        for url in self._databases():
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(_OTHERS.encode())

    def _take_over(self) -> None:
        """Has other attempts apply the batch, and those after it, while this one is stopped."""
        try:
            for _ in range(self._chance.randint(1, 2)):
                self._settle()
        except Exception as error:
            # Not to be taken for the failure of the attempt that is stopped.
            self._broken.append(error)

    def _alter(self) -> None:
        with self._replication.connect() as db:
            db.execute("set lock_timeout = '2s'; set deadlock_timeout = '30ms'")
            with suppress(pg.LockNotAvailable, pg.DeadlockDetected, pg.IntegrityError):
                for statement in altering(self._chance, next(self._numbers)):
                    db.execute(statement.encode())

    def _compact(self) -> None:
        """Unites the files of a replica, as the job does."""
        assert isinstance(self._replication, LakeReplication)
        # There may be no replica yet.
        with suppress(InvalidArgument):
            sink = self._replication.sink(self._chance.choice(TABLES))
            sink.maintain(self._replication.spark, self._replication.url)

    def _databases(self) -> list[str]:
        found = [self._replication.url]
        if isinstance(self._replication, PostgresReplication):
            found.append(str(self._replication.target.url))
        return found

    @contextmanager
    def _terminating(self) -> Iterator[None]:
        """Terminates a session of the attempt now and then."""
        done, chance = threading.Event(), random.Random(self._chance.random())
        self._faults.has_fired = True

        def terminate() -> None:
            while not done.wait(0.05 + chance.random() / 2):
                for url in self._databases():
                    with psycopg.connect(url, autocommit=True) as db:
                        db.execute(f"{_OTHERS} and random() < 0.3".encode())

        with in_threads(terminate, stop=done.set):
            yield

    def _verify(self) -> None:
        found = self._replication.verify(self._chance.choice(TABLES))
        assert found.is_equal or found.why_not is not None, found
