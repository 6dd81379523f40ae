"""A random interleaving of everything that the queue's users do, beside a model that is a list.

One thread drives many connections, so that a seed fixes the order of all that happens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.support.queues import Connection, bloat_positions, bloat_ticks, make_queue, rows, value

Another = Callable[[], Connection]


@dataclass
class Producer:
    """An open transaction, with its events by savepoint."""

    db: Connection
    levels: list[list[str]] = field(default_factory=list)
    stale_table: str = ""
    has_ticked: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.levels)

    def abandon(self) -> None:
        self.db.execute("rollback")
        self.levels = []
        self.has_ticked = False


@dataclass
class Consumer:
    """What a consumer must get, and what it got."""

    name: str
    speed: int
    expected: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    read: tuple[int, list[tuple[Any, ...]]] | None = None


class Interleaving:
    """Runs steps chosen by a seed; `finish` ends all that is open and drains the queue."""

    def __init__(self, another: Another, seed: int) -> None:
        self.random = Random(seed)
        self.db = another()
        self.reader = another()
        self.log: list[str] = []
        self.sent = 0
        self.producers = [Producer(another()) for _ in range(4)]
        self.consumers = [Consumer("fast", 3), Consumer("slow", 1)]
        make_queue(
            self.db,
            consumers=[consumer.name for consumer in self.consumers],
            rotation_period="1 microsecond",
            max_retries="1000000",
            ticker_max_count="3",
        )
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (20, self.produce),
            (4, self.tick),
            (3, self.rotate),
            (1, self.compact),
            (1, self.maintain),
            *((2 * c.speed, lambda c=c: self.consume(c)) for c in self.consumers),
            *((1, lambda c=c: self.consume_and_roll_back(c)) for c in self.consumers),
        ]

    def run(self, count: int) -> None:
        weights = [weight for weight, _ in self.steps]
        for _ in range(count):
            (_, step) = self.random.choices(self.steps, weights)[0]
            step()

    # Producers

    def produce(self) -> None:
        producer = self.random.choice(self.producers)
        if not producer.is_open:
            level = self.random.choice(["read committed", "read committed", "repeatable read"])
            producer.db.execute(f"begin isolation level {level}".encode())
            producer.levels = [[]]
            value(producer.db, "select count(*) from pgque.queue")
            return
        step = self.random.choices(
            [
                self.send,
                self.copy,
                self.savepoint,
                self.roll_back_savepoint,
                self.tick_inside,
                self.commit,
                self.roll_back,
            ],
            [12, 3, 2, 2, 0.5, 4, 1],
        )[0]
        try:
            step(producer)
        except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
            producer.abandon()

    def new_payload(self) -> str:
        self.sent += 1
        return f"event {self.sent}"

    def send(self, producer: Producer) -> None:
        payload = self.new_payload()
        value(producer.db, "select pgque.send('q', %s::text)", payload)
        producer.levels[-1].append(payload)

    def copy(self, producer: Producer) -> None:
        if not producer.stale_table or self.random.random() < 0.3:
            producer.stale_table = value(producer.db, "select pgque.current_event_table('q')")
        payloads = [self.new_payload() for _ in range(self.random.randint(1, 5))]
        sql = f"copy {producer.stale_table} (ev_data) from stdin"
        with producer.db.cursor() as cursor, cursor.copy(sql.encode()) as out:
            for payload in payloads:
                out.write_row([payload])
        producer.levels[-1] += payloads

    def savepoint(self, producer: Producer) -> None:
        producer.db.execute(f"savepoint s{len(producer.levels)}".encode())
        producer.levels.append([])

    def roll_back_savepoint(self, producer: Producer) -> None:
        if len(producer.levels) > 1:
            number = self.random.randrange(1, len(producer.levels))
            producer.db.execute(f"rollback to savepoint s{number}".encode())
            producer.levels[number:] = [[]]

    def tick_inside(self, producer: Producer) -> None:
        producer.has_ticked = True
        value(producer.db, "select pgque.ticker()")

    def commit(self, producer: Producer) -> None:
        producer.db.execute("commit")
        for consumer in self.consumers:
            consumer.expected.update(payload for level in producer.levels for payload in level)
        producer.levels = []
        producer.has_ticked = False

    def roll_back(self, producer: Producer) -> None:
        producer.abandon()

    # Running the queue

    def tick(self) -> None:
        if self.random.random() < 0.5:
            value(self.db, "select pgque.force_next_tick('q')")
        value(self.db, "select pgque.ticker()")

    def rotate(self) -> None:
        value(self.db, "select pgque.maint_rotate_tables_step1('q')")
        value(self.db, "select pgque.maint_rotate_tables_step2()")

    def compact(self) -> None:
        bloat_positions(self.db)
        # A producer that ticked would hold the next tick's number until it ends.
        if not any(producer.has_ticked for producer in self.producers):
            value(self.db, "select pgque.force_next_tick('q')")
            if value(self.db, "select pgque.ticker('q')") is not None:
                bloat_ticks(self.db, 1100)
        value(self.db, "select pgque.maint_compact_positions()")
        value(self.db, "select pgque.maint_compact_ticks()")

    def maintain(self) -> None:
        value(self.db, "select pgque.maint()")

    # Consumers

    def open(self, consumer: Consumer) -> int | None:
        maximum = self.random.choice([None, 1, 5, 50])
        batch: int | None = value(
            self.db,
            "select batch_id from pgque.next_batch_custom('q', %s, null, null, null, %s)",
            consumer.name,
            maximum,
        )
        return batch

    def consume(self, consumer: Consumer) -> None:
        batch = self.open(consumer)
        if batch is None:
            return
        events = self.read(batch)
        if consumer.read is not None:
            assert consumer.read == (batch, events), "a batch was not the same again"
        consumer.read = (batch, events)
        if self.random.random() < 0.6:
            self.settle(consumer, batch, events)

    def settle(self, consumer: Consumer, batch: int, events: list[tuple[Any, ...]]) -> None:
        """Finishes a batch, with some events to be retried."""
        failed = [event for event in events if self.random.random() < 0.1]
        with self.db.transaction():
            ids = [event[0] for event in failed]
            value(self.db, "select pgque.nack_batch(%s, %s::bigint[], '0')", batch, ids)
            value(self.db, "select pgque.finish_batch(%s)", batch)
        consumer.delivered.update(event[5] for event in events)
        consumer.expected.update(event[5] for event in failed)
        consumer.read = None

    def consume_and_roll_back(self, consumer: Consumer) -> None:
        with self.db.transaction(force_rollback=True):
            batch = self.open(consumer)
            if batch is not None:
                value(self.db, "select pgque.finish_batch(%s)", batch)

    def read(self, batch: int) -> list[tuple[Any, ...]]:
        """The events of a batch, the same on two connections and by its read plan."""
        sql = "select * from pgque.get_batch_events(%s)"
        events = rows(self.db, sql, batch)
        assert rows(self.reader, sql, batch) == events, "another connection reads another batch"
        slices = rows(
            self.db,
            "select slice_sql from pgque.batch_read_plan(%s, %s)",
            batch,
            self.random.randint(1, 5),
        )
        sliced = [row for (text,) in slices for row in rows(self.reader, text)]
        assert sorted(sliced) == sorted(events), "the slices are not the batch"
        return events

    # The end

    def finish(self) -> None:
        for producer in self.producers:
            if producer.is_open:
                self.commit(producer)
        while True:
            value(self.db, "select pgque.maint_retry_events()")
            value(self.db, "select pgque.force_next_tick('q')")
            value(self.db, "select pgque.ticker()")
            if not sum([self.drain(consumer) for consumer in self.consumers]):
                return

    def drain(self, consumer: Consumer) -> int:
        """How many events there were."""
        count = 0
        while (batch := self.open(consumer)) is not None:
            events = self.read(batch)
            count += len(events)
            consumer.read = None
            value(self.db, "select pgque.finish_batch(%s)", batch)
            consumer.delivered.update(event[5] for event in events)
        return count
