"""Producers, tickers, maintenance and consumers in threads of their own, all at full speed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Event

import psycopg

from tests.support.queues import (
    Connection,
    compact_positions,
    drain,
    finish,
    make_queue,
    next_batch,
    payloads,
    rows,
    tick,
    value,
)

Another = Callable[[], Connection]
TRANSACTIONS = 150


@dataclass
class Load:
    """What runs at once on one queue."""

    another: Another
    pool: ThreadPoolExecutor
    stopped: Event = field(default_factory=Event)

    def repeat(self, step: Callable[[Connection], object]) -> Future[None]:
        """Runs a step until the load is stopped; it may be told to start again."""
        db = self.another()

        def run() -> None:
            while not self.stopped.is_set():
                try:
                    step(db)
                except psycopg.errors.SerializationFailure:
                    db.rollback()

        return self.pool.submit(run)

    def produce(self, name: str) -> Future[list[str]]:
        return self.pool.submit(produce, self.another(), name)


def produce(db: Connection, name: str) -> list[str]:
    """Sends in transactions of random size and end; returns what was committed."""
    random = Random(name)
    committed = []
    for number in range(TRANSACTIONS):
        sent = [f"{name} {number} {n}" for n in range(random.randint(1, 5))]
        keeps = random.random() < 0.8
        with db.transaction(force_rollback=not keeps):
            for text in sent:
                with db.transaction():
                    value(db, "select pgque.send('q', %s::text)", text)
            with db.transaction(force_rollback=True):
                value(db, "select pgque.send('q', 'of a savepoint that is rolled back')")
        committed += sent if keeps else []
    return committed


def run_queue(db: Connection) -> None:
    value(db, "select pgque.ticker()")
    value(db, "select pgque.maint_rotate_tables_step1('q')")
    value(db, "select pgque.maint_rotate_tables_step2()")


def compact(db: Connection) -> None:
    """Compacts the logs whatever their length."""
    compact_positions(db)


def test_consumers_get_everything_once_while_everything_else_runs(
    db: Connection, another: Another
) -> None:
    make_queue(
        db,
        consumers=("c", "other"),
        rotation_period="1 microsecond",
        ticker_max_count="1",
        ticker_idle_period="0",
    )
    consumed: dict[str, list[str]] = {"c": [], "other": []}

    def consume(consumer: str) -> Callable[[Connection], None]:
        def step(session: Connection) -> None:
            batch = next_batch(session, consumer=consumer)
            if batch is not None:
                read = payloads(session, batch)
                finish(session, batch)
                consumed[consumer].extend(read)

        return step

    with ThreadPoolExecutor(16) as pool:
        load = Load(another, pool)
        others = [load.repeat(step) for step in (run_queue, run_queue, compact)]
        others += [load.repeat(consume(consumer)) for consumer in consumed]
        producers = [load.produce(name) for name in ("p1", "p2", "p3")]
        try:
            committed = [text for producer in producers for text in producer.result()]
        finally:
            load.stopped.set()
        for other in others:
            other.result()
    tick(db)
    for consumer, texts in consumed.items():
        texts += drain(db, consumer=consumer)
        assert sorted(texts) == sorted(committed), consumer


def test_workers_that_share_a_consumer_ack_each_event_once(
    db: Connection, another: Another
) -> None:
    make_queue(db, rotation_period="1 microsecond", ticker_max_count="1")
    acked: list[str] = []

    def work(session: Connection) -> None:
        owner = f"worker {session.info.backend_pid}"
        try:
            ((batch, epoch),) = rows(
                session,
                "select batch_id, epoch from pgque.claim_batch('q', 'c', %s, '5 ms')",
                owner,
            )
            if batch is None:
                return
            read = payloads(session, batch)
            value(session, "select pgque.ack_batch(%s, %s, %s)", batch, owner, epoch)
        except psycopg.Error as error:
            if error.sqlstate not in ("PQ003", "PQ004", "PQ012"):
                raise
            return
        acked.extend(read)

    with ThreadPoolExecutor(16) as pool:
        load = Load(another, pool)
        others = [load.repeat(step) for step in (run_queue, compact, work, work, work)]
        producers = [load.produce(name) for name in ("p1", "p2")]
        try:
            committed = [text for producer in producers for text in producer.result()]
        finally:
            load.stopped.set()
        for other in others:
            other.result()
    tick(db)
    value(db, "select pg_sleep(0.01)::text")
    assert sorted(acked + drain(db)) == sorted(committed)
