"""Everything that a queue's users do, in an order that Hypothesis chooses, beside a plain model.

One thread drives many connections, so that a seed fixes the order of all that happens. The model is
the events that committed, counted; each consumer must get just those, retries included.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.conftest import INSTALL_SQL
from tests.support.queues import Connection, bloat_positions, bloat_ticks, make_queue, rows, value

INSTALL = INSTALL_SQL.read_bytes()
EVENTS = "select * from pgque.get_batch_events(%s)"


@dataclass
class Producer:
    """An open transaction, with its events by savepoint."""

    db: Connection
    name: str
    levels: list[list[str]] = field(default_factory=list)
    stale_table: str = ""
    has_ticked: bool = False
    is_prepared: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.levels)

    def begin(self, level: str = "read committed") -> None:
        self.db.execute(f"begin isolation level {level}".encode())
        value(self.db, "select count(*) from pgque.queue")
        self.levels = [[]]

    def end(self, statement: str) -> list[str]:
        """Ends the transaction; returns what it had sent."""
        if self.is_prepared:
            statement += f" prepared '{self.name}'"
        self.db.execute(statement.encode())
        sent = [payload for level in self.levels for payload in level]
        self.levels, self.has_ticked, self.is_prepared = [], False, False
        return sent


@dataclass
class Consumer:
    """What a consumer must get, and what it got."""

    name: str
    expected: Counter[str] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    read: tuple[int, list[tuple[Any, ...]]] | None = None

    def deliver(self, events: list[tuple[Any, ...]]) -> None:
        self.delivered.update(event[5] for event in events)
        assert self.delivered <= self.expected, "an event came twice, or was not committed"
        self.read = None


class Stage:
    """The connections of one test, which its examples use one after the other."""

    def __init__(self, another: Callable[[], Connection]) -> None:
        self.db, self.reader, self.installer = another(), another(), another()
        self.installer.execute("set lock_timeout = '100ms'")
        self.producers = [another() for _ in range(4)]
        self.steps = self.events = 0

    def clear(self) -> None:
        for connection in (self.db, self.installer, *self.producers):
            connection.execute("rollback")
        for (gid,) in rows(self.db, "select gid from pg_prepared_xacts"):
            self.db.execute(f"rollback prepared '{gid}'".encode())
        for (queue,) in rows(self.db, "select queue_name from pgque.queue"):
            value(self.db, "select pgque.drop_queue(%s, true)", queue)


slots = st.integers(0, 3)
consumers = st.integers(0, 2)
few = st.integers(1, 5)


class Interleaving(RuleBasedStateMachine):
    """The rules, each a step; ending an example ends all that is open and drains the queue."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        stage.clear()
        self.stage, self.db, self.reader = stage, stage.db, stage.reader
        self.sent = 0
        self.has_installed_again = False
        self.producers = [Producer(db, f"p{n}") for n, db in enumerate(stage.producers)]
        self.consumers = [Consumer("first"), Consumer("second"), Consumer("third")]
        make_queue(
            self.db,
            consumers=[consumer.name for consumer in self.consumers],
            rotation_period="1 microsecond",
            max_retries="1000000",
            ticker_max_count="3",
        )

        stage.steps -= 1  # what follows runs once before the first step, too

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        self.stage.steps += 1
        super().check_invariants(*args, **kwargs)

    # Producers

    def in_transaction(self, slot: int, step: Callable[[Producer], None]) -> None:
        """Runs a step in the slot's transaction, begun if need be; an error ends it."""
        producer = self.producers[slot]
        if producer.is_prepared:
            return
        if not producer.is_open:
            producer.begin()
        try:
            step(producer)
        except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
            producer.end("rollback")

    def new_payloads(self, count: int) -> list[str]:
        self.sent += count
        return [f"event {number}" for number in range(self.sent - count, self.sent)]

    @rule(slot=slots, level=st.sampled_from(["read committed", "repeatable read"]))
    def begin(self, slot: int, level: str) -> None:
        if not self.producers[slot].is_open:
            self.producers[slot].begin(level)

    @rule(slot=slots)
    def send(self, slot: int) -> None:
        def step(producer: Producer) -> None:
            (payload,) = self.new_payloads(1)
            value(producer.db, "select pgque.send('q', %s::text)", payload)
            producer.levels[-1].append(payload)

        self.in_transaction(slot, step)

    @rule(slot=slots, count=few)
    def send_batch(self, slot: int, count: int) -> None:
        def step(producer: Producer) -> None:
            payloads = self.new_payloads(count)
            value(producer.db, "select pgque.send_batch('q', 't', %s::text[])", payloads)
            producer.levels[-1] += payloads

        self.in_transaction(slot, step)

    @rule(slot=slots, count=few, ask=st.booleans())
    def copy(self, slot: int, count: int, ask: bool) -> None:
        """COPY, into the current table or into one that was current when last asked for."""

        def step(producer: Producer) -> None:
            if ask or not producer.stale_table:
                producer.stale_table = value(producer.db, "select pgque.current_event_table('q')")
            payloads = self.new_payloads(count)
            sql = f"copy {producer.stale_table} (ev_data) from stdin"
            with producer.db.cursor() as cursor, cursor.copy(sql.encode()) as out:
                for payload in payloads:
                    out.write_row([payload])
            producer.levels[-1] += payloads

        self.in_transaction(slot, step)

    @rule(slot=slots)
    def savepoint(self, slot: int) -> None:
        def step(producer: Producer) -> None:
            producer.db.execute(f"savepoint s{len(producer.levels)}".encode())
            producer.levels.append([])

        self.in_transaction(slot, step)

    @rule(slot=slots, depth=few)
    def roll_back_to_savepoint(self, slot: int, depth: int) -> None:
        def step(producer: Producer) -> None:
            if depth < len(producer.levels):
                producer.db.execute(f"rollback to savepoint s{depth}".encode())
                producer.levels[depth:] = [[]]

        self.in_transaction(slot, step)

    @rule(slot=slots)
    def tick_inside(self, slot: int) -> None:
        def step(producer: Producer) -> None:
            producer.has_ticked = True
            value(producer.db, "select pgque.ticker()")

        self.in_transaction(slot, step)

    @rule(slot=slots)
    def prepare(self, slot: int) -> None:
        """The first phase of two. PostgreSQL refuses it after NOTIFY, and so after a tick."""
        producer = self.producers[slot]
        if producer.is_open and not producer.is_prepared and not producer.has_ticked:
            producer.db.execute(f"prepare transaction '{producer.name}'".encode())
            producer.is_prepared = True

    @rule(slot=slots)
    def commit(self, slot: int) -> None:
        producer = self.producers[slot]
        if producer.is_open:
            sent = producer.end("commit")
            self.stage.events += len(sent)
            for consumer in self.consumers:
                consumer.expected.update(sent)

    @rule(slot=slots)
    def roll_back(self, slot: int) -> None:
        if self.producers[slot].is_open:
            self.producers[slot].end("rollback")

    # Running the queue

    @rule(force=st.booleans())
    def tick(self, force: bool) -> None:
        if force:
            value(self.db, "select pgque.force_next_tick('q')")
        value(self.db, "select pgque.ticker()")

    @rule()
    def rotate(self) -> None:
        value(self.db, "select pgque.maint_rotate_tables_step1('q')")
        value(self.db, "select pgque.maint_rotate_tables_step2()")

    @rule(ticks=st.booleans())
    def compact(self, ticks: bool) -> None:
        bloat_positions(self.db)
        # A producer that ticked would hold the next tick's number until it ends.
        if ticks and not any(producer.has_ticked for producer in self.producers):
            value(self.db, "select pgque.force_next_tick('q')")
            if value(self.db, "select pgque.ticker('q')") is not None:
                bloat_ticks(self.db, 1100)
        value(self.db, "select pgque.maint_compact_positions()")
        value(self.db, "select pgque.maint_compact_ticks()")

    @rule()
    def maintain(self) -> None:
        value(self.db, "select pgque.maint()")

    @rule()
    @precondition(lambda self: not self.has_installed_again)
    def install_again(self) -> None:
        """All of pgque.sql; a transaction that ticked holds it up, and then it changes nothing."""
        self.has_installed_again = True
        try:
            self.stage.installer.execute(INSTALL)
        except psycopg.errors.LockNotAvailable:
            self.stage.installer.execute("rollback")

    # Consumers

    def open(self, consumer: Consumer, maximum: int | None) -> int | None:
        batch: int | None = value(
            self.db,
            "select batch_id from pgque.next_batch_custom('q', %s, null, null, null, %s)",
            consumer.name,
            maximum,
        )
        return batch

    def read(self, batch: int, slices: int) -> list[tuple[Any, ...]]:
        """The events of a batch, the same on two connections and by its read plan."""
        events = rows(self.db, EVENTS, batch)
        assert rows(self.reader, EVENTS, batch) == events, "another connection reads another batch"
        plan = rows(self.db, "select slice_sql from pgque.batch_read_plan(%s, %s)", batch, slices)
        sliced = [row for (text,) in plan for row in rows(self.reader, text)]
        assert sorted(sliced) == sorted(events), "the slices are not the batch"
        return events

    @rule(which=consumers, maximum=st.sampled_from([None, 1, 5, 50]), slices=few)
    def receive(self, which: int, maximum: int | None, slices: int) -> None:
        """Opens a batch, or reads the open one once more."""
        consumer = self.consumers[which]
        batch = self.open(consumer, maximum)
        if batch is not None:
            events = self.read(batch, slices)
            assert consumer.read in (None, (batch, events)), "a batch was not the same again"
            consumer.read = (batch, events)

    @rule(which=consumers, nth=st.sampled_from([0, 0, 2, 5]))
    def finish(self, which: int, nth: int) -> None:
        """Finishes the batch that was read, with every nth event to be retried."""
        consumer = self.consumers[which]
        if consumer.read is not None:
            batch, events = consumer.read
            failed = events[::nth] if nth else []
            with self.db.transaction():
                ids = [event[0] for event in failed]
                value(self.db, "select pgque.nack_batch(%s, %s::bigint[], '0')", batch, ids)
                value(self.db, "select pgque.finish_batch(%s)", batch)
            consumer.deliver(events)
            consumer.expected.update(event[5] for event in failed)

    @rule(which=consumers)
    def finish_and_roll_back(self, which: int) -> None:
        with self.db.transaction(force_rollback=True):
            batch = self.open(self.consumers[which], None)
            if batch is not None:
                value(self.db, "select pgque.finish_batch(%s)", batch)

    # The end

    def teardown(self) -> None:
        for slot in range(len(self.producers)):
            self.commit(slot)
        while True:
            value(self.db, "select pgque.maint_retry_events()")
            value(self.db, "select pgque.force_next_tick('q')")
            value(self.db, "select pgque.ticker()")
            if not sum([self.drain(consumer) for consumer in self.consumers]):
                break
        for consumer in self.consumers:
            assert consumer.delivered == consumer.expected, f"{consumer.name} missed events"

    def drain(self, consumer: Consumer) -> int:
        """How many events there were."""
        count = 0
        # With a maximum, one batch spans the many idle ticks that a compaction left.
        while (batch := self.open(consumer, 50)) is not None:
            events = self.read(batch, 2)
            assert consumer.read in (None, (batch, events)), "a batch was not the same again"
            value(self.db, "select pgque.finish_batch(%s)", batch)
            consumer.deliver(events)
            count += len(events)
        return count
