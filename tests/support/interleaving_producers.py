"""What producers do: the part of the interleaving that happens inside their open transactions."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.interleaving_model import BUSY, QUEUES, Consumer, Producer, Stage, now
from tests.support.queues import rows, value

few = st.integers(1, 5)
which = st.integers(0, 11)  # of those that can do the step, counted around


def pick(candidates: list[Any], number: int) -> Any:
    """One of them, or None. Not a precondition: what is there depends on time, which Hypothesis
    does not repeat."""
    return candidates[number % len(candidates)] if candidates else None


class Producing(RuleBasedStateMachine):
    """The rules of the producers. Each sends, commits or rolls back by itself."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.queues: list[str] = []
        self.consumers: list[Consumer] = []
        self.producers = [Producer(db, f"p{n}") for n, db in enumerate(stage.producers)]
        self.sent = 0
        self.due: dict[str, datetime] = {}

    @property
    def closed(self) -> list[Producer]:
        return [producer for producer in self.producers if not producer.is_open]

    @property
    def opened(self) -> list[Producer]:
        return [producer for producer in self.producers if producer.is_open]

    @property
    def unprepared(self) -> list[Producer]:
        return [producer for producer in self.producers if not producer.is_prepared]

    @property
    def nested(self) -> list[Producer]:
        return [producer for producer in self.unprepared if len(producer.levels) > 1]

    @property
    def preparable(self) -> list[Producer]:
        return [p for p in self.opened if not p.is_prepared and not p.has_ticked]

    def in_transaction(self, number: int, step: Callable[[Producer], None]) -> None:
        """Runs a step in a transaction, begun if need be; an error ends it."""
        producer = pick(self.unprepared, number)
        if producer is None:
            return
        if not producer.is_open:
            producer.begin()
        try:
            step(producer)
        except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
            producer.end("rollback")

    def there(self, queue: str) -> str:
        """The queue, or the one that is always there."""
        return queue if queue in self.queues else "q"

    def new_payloads(self, count: int) -> list[str]:
        self.sent += count
        return [f"event {number}" for number in range(self.sent - count, self.sent)]

    @rule(force=st.booleans())
    def tick(self, force: bool) -> None:
        """Of all queues together, so that the quiet one gets batches without an event."""
        if force:
            rows(self.stage.db, "select pgque.force_next_tick(queue_name) from pgque.queue")
        value(self.stage.db, "select pgque.ticker()")

    @rule(number=which, level=st.sampled_from(["read committed", "repeatable read"]))
    def begin(self, number: int, level: str) -> None:
        if producer := pick(self.closed, number):
            producer.begin(level)

    @rule(number=which, queue=BUSY)
    def send(self, number: int, queue: str) -> None:
        queue = self.there(queue)

        def step(producer: Producer) -> None:
            (payload,) = self.new_payloads(1)
            value(producer.db, "select pgque.send(%s, %s::text)", queue, payload)
            producer.sent(queue, payload)

        self.in_transaction(number, step)

    @rule(number=which, queue=BUSY, key=st.sampled_from("abcd"))
    def send_keyed(self, number: int, queue: str, key: str) -> None:
        """The key decides which slot of a partitioned consumer gets the event."""

        queue = self.there(queue)

        def step(producer: Producer) -> None:
            (payload,) = self.new_payloads(1)
            sql = "select pgque.insert_event(%s, 't', %s, %s, null, null, null)"
            value(producer.db, sql, queue, payload, key)
            producer.sent(queue, payload)

        self.in_transaction(number, step)

    @rule(number=which, queue=BUSY, count=few)
    def send_batch(self, number: int, queue: str, count: int) -> None:
        queue = self.there(queue)

        def step(producer: Producer) -> None:
            payloads = self.new_payloads(count)
            value(producer.db, "select pgque.send_batch(%s, 't', %s::text[])", queue, payloads)
            producer.sent(queue, *payloads)

        self.in_transaction(number, step)

    @rule(queue=st.sampled_from(QUEUES))
    def use_up_ids(self, queue: str) -> None:
        """A batch over so many ids is read in the long way, however few its events are."""
        with self.stage.db.transaction(force_rollback=True):
            sql = "select pgque.send_batch(%s, 't', array_fill('undone'::text, '{1000}'))"
            value(self.stage.db, sql, self.there(queue))

    @rule(number=which, queue=BUSY, count=few, ask=st.booleans())
    def copy(self, number: int, queue: str, count: int, ask: bool) -> None:
        """COPY, into the current table or into one that was current when last asked for."""

        queue = self.there(queue)

        def step(producer: Producer) -> None:
            if ask or queue not in producer.stale_tables:
                asked = value(producer.db, "select pgque.current_event_table(%s)", queue)
                producer.stale_tables[queue] = asked
            payloads = self.new_payloads(count)
            sql = f"copy {producer.stale_tables[queue]} (ev_data) from stdin"
            with producer.db.cursor() as cursor, cursor.copy(sql.encode()) as out:
                for payload in payloads:
                    out.write_row([payload])
            producer.sent(queue, *payloads)

        self.in_transaction(number, step)

    @rule(number=which, queue=BUSY, delay=st.sampled_from([-1.0, 0.01, 0.05]))
    def send_at(self, number: int, queue: str, delay: float) -> None:
        queue = self.there(queue)

        def step(producer: Producer) -> None:
            if self.stage.is_old:
                return
            payload = f'"{self.new_payloads(1)[0]}"'  # JSON
            self.due[payload] = now() + timedelta(seconds=delay)
            sql = "select pgque.send_at(%s, 't', %s::jsonb, %s)"
            value(producer.db, sql, queue, payload, self.due[payload])
            producer.sent(queue, payload)

        self.in_transaction(number, step)

    @rule(number=which)
    def savepoint(self, number: int) -> None:
        def step(producer: Producer) -> None:
            producer.db.execute(f"savepoint s{len(producer.levels)}".encode())
            producer.levels.append([])

        self.in_transaction(number, step)

    @rule(number=which, depth=few)
    def roll_back_to_savepoint(self, number: int, depth: int) -> None:
        if producer := pick(self.nested, number):
            level = min(depth, len(producer.levels) - 1)
            producer.db.execute(f"rollback to savepoint s{level}".encode())
            producer.levels[level:] = [[]]

    @rule(number=which)
    def tick_inside(self, number: int) -> None:
        def step(producer: Producer) -> None:
            producer.has_ticked = True
            value(producer.db, "select pgque.ticker()")

        self.in_transaction(number, step)

    @rule(number=which)
    def prepare(self, number: int) -> None:
        """The first phase of two. PostgreSQL refuses it after NOTIFY, and so after a tick."""
        if producer := pick(self.preparable, number):
            producer.db.execute(f"prepare transaction '{producer.name}'".encode())
            producer.is_prepared = True

    @rule(number=which, then_tick=st.booleans())
    def commit(self, number: int, then_tick: bool) -> None:
        if producer := pick(self.opened, number):
            sent = producer.end("commit")
            self.stage.events += len(sent)
            for consumer in self.consumers:
                consumer.expected.update(text for queue, text in sent if queue == consumer.queue)
        if then_tick:
            self.tick(force=True)

    @rule(number=which)
    def roll_back(self, number: int) -> None:
        if producer := pick(self.opened, number):
            producer.end("rollback")
