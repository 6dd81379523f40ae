"""Producers, tickers, maintenance and consumers in threads of their own, all at full speed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
    send,
    tick,
    value,
)
from tests.support.races import Another

TRANSACTIONS = 100


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
                    send(db, text)
            with db.transaction(force_rollback=True):
                send(db, "of a savepoint that is rolled back")
        committed += sent if keeps else []
    return committed


@contextmanager
def beaten() -> Iterator[None]:
    """Another session may finish or lease the batch first."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in ("PQ003", "PQ004", "PQ012"):
            raise


def run_queue(db: Connection) -> None:
    value(db, "select pgque.ticker()")
    value(db, "select pgque.maint_rotate_tables_step1('q')")
    value(db, "select pgque.maint_rotate_tables_step2()")


def test_consumers_and_workers_that_share_one_get_each_event_once(
    db: Connection, another: Another
) -> None:
    make_queue(
        db, consumers=("c", "other", "shared"), rotation_period="1 microsecond",
        ticker_max_count="1", ticker_idle_period="0",
    )  # fmt: skip
    consumed: dict[str, list[str]] = {"c": [], "other": [], "shared": []}
    stopped = Event()

    def consume(consumer: str) -> Callable[[Connection], None]:
        def step(session: Connection) -> None:
            batch = next_batch(session, consumer=consumer)
            if batch is not None:
                with beaten():
                    read = payloads(session, batch)
                    finish(session, batch)
                    consumed[consumer].extend(read)

        return step

    def work(session: Connection) -> None:
        owner = f"worker {session.info.backend_pid}"
        claim = "select batch_id, epoch from pgque.claim_batch('q', 'shared', %s, '5 ms')"
        with beaten():
            ((batch, epoch),) = rows(session, claim, owner)
            if batch is not None:
                read = payloads(session, batch)
                value(session, "select pgque.ack_batch(%s, %s, %s)", batch, owner, epoch)
                consumed["shared"].extend(read)

    def repeat(step: Callable[[Connection], object], session: Connection) -> None:
        """Until the end; a compaction may tell it to start again."""
        while not stopped.is_set():
            try:
                step(session)
            except psycopg.errors.SerializationFailure:
                session.rollback()

    steps = [run_queue, run_queue, compact_positions, work, work, work]
    steps += [consume("c"), consume("c"), consume("other")]
    with ThreadPoolExecutor(16) as pool:
        others: list[Future[None]] = [pool.submit(repeat, step, another()) for step in steps]
        producers = [pool.submit(produce, another(), name) for name in ("p1", "p2", "p3")]
        try:
            committed = [text for producer in producers for text in producer.result()]
        finally:
            stopped.set()
        for other in others:
            other.result()
    tick(db)
    value(db, "select pg_sleep(0.01)::text")
    for consumer, texts in consumed.items():
        texts += drain(db, consumer=consumer)
        assert sorted(texts) == sorted(committed), consumer
