"""Everything that users of queues do, in an order that Hypothesis chooses, beside a plain model.

One thread drives many connections, so that a seed fixes the order of all that happens. The model is
the events that committed, counted by queue; each consumer must get just those of its queue, retries
and replays included, and its dead letters must be those that it gave up.

There are three queues, one of them mostly idle, and each batch is read in every way, empty ones
too: a single queue cannot show events of another, and a way that no step calls cannot fail.
"""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.interleaving_model import BUSY, MAX_RETRIES, QUEUES, Consumer, Holder, Stage, now
from tests.support.interleaving_producers import few, pick, which
from tests.support.interleaving_slots import Partitioned
from tests.support.queues import (
    bloat_positions,
    bloat_ticks,
    empty_halves,
    make_queue,
    refused,
    rows,
    value,
)
from tests.support.readings import EVENTS, Event, check_received, read_every_way

NACK = "select pgque.nack_batch(%s, %s::bigint[], '0')"
DEAD = "select pgque.dead_letter_batch(%s, %s::bigint[], 'bad')"
WORKERS = ("w1", "w2")
RECEIVE = "select * from pgque.receive(%s, %s, 10000)"
RECEIVE_COOP = "select * from pgque.receive_coop(%s, %s, %s, 10000)"
TICKS_LEFT = """
select count(*) from pgque.subscription s
join pgque.tick t on t.tick_queue = s.sub_queue and t.tick_id > s.sub_next_tick
where s.sub_batch = %s
"""


class Interleaving(Partitioned):
    """The rules, each a step; ending an example ends all that is open and drains the queues."""

    def __init__(self, stage: Stage) -> None:
        stage.clear()
        super().__init__(stage)
        self.db, self.reader = stage.db, stage.reader
        # Installing takes long, so not in each example.
        self.may_install = stage.examples % 3 == 1
        if stage.examples % 6 == 4:
            stage.install_release()
        self.holders: list[Holder] = []
        # The release shows events of other queues, and knows no slots.
        for queue in QUEUES[:1] if stage.is_old else QUEUES:
            self.add_queue(queue)

        # Rotation mostly waits for the transactions that are open here, unless told not to.
        if not stage.is_old:
            patience = "0" if stage.examples % 2 else "1 hour"
            value(self.db, "select pgque.set_snapshot_patience(%s::interval)::text", patience)

        stage.steps -= 1  # what follows runs once before the first step, too

    def add_queue(self, queue: str) -> None:
        alone = [Consumer(queue, name) for name in ("first", "second")[: 2 if queue == "q" else 1]]
        shared = Consumer(queue, "shared")
        make_queue(
            self.db,
            queue,
            [consumer.name for consumer in alone],
            rotation_period="1 microsecond",
            max_retries=str(MAX_RETRIES),
            ticker_max_count="3",
        )
        for worker in WORKERS:
            sql = "select pgque.register_subconsumer(%s, 'shared', %s)"
            value(self.db, sql, queue, worker)
        self.queues.append(queue)
        self.consumers += [*alone, shared]
        self.holders += [Holder(consumer) for consumer in alone]
        self.holders += [Holder(shared, worker) for worker in WORKERS]
        if not self.stage.is_old:
            self.subscribe_slots(queue)

    def install(self) -> bool:
        """False when locks hold it up. Over a release, it brings the other queues."""
        was_old = self.stage.is_old
        is_done = self.stage.install()
        if was_old and is_done:
            for queue in QUEUES[1:]:
                self.add_queue(queue)
        return is_done

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        self.stage.steps += 1
        super().check_invariants(*args, **kwargs)

    # Running the queue

    @rule(queue=BUSY)
    def rotate(self, queue: str) -> None:
        value(self.db, "select pgque.maint_rotate_tables_step1(%s)", self.there(queue))
        value(self.db, "select pgque.maint_rotate_tables_step2()")

    @rule(ticks=st.booleans(), queue=st.sampled_from(QUEUES))
    def compact(self, ticks: bool, queue: str) -> None:
        if self.stage.is_old:  # its logs have no halves to look into
            value(self.db, "select pgque.maint_compact_positions()")
            value(self.db, "select pgque.maint_compact_ticks()")
            return
        bloat_positions(self.db)
        # A producer that ticked would hold the next tick's number until it ends.
        if ticks and not any(producer.has_ticked for producer in self.producers):
            queue = self.there(queue)
            value(self.db, "select pgque.force_next_tick(%s)", queue)
            if value(self.db, "select pgque.ticker(%s)", queue) is not None:
                bloat_ticks(self.db, 1100, queue)
        empty_halves(self.db)
        value(self.db, "select pgque.maint_compact_positions()")
        value(self.db, "select pgque.maint_compact_ticks()")

    @rule()
    def maintain(self) -> None:
        """What a scheduler does: retries and delayed events get into the next batch."""
        value(self.db, "select pgque.maint()")
        self.tick(force=False)

    @rule()
    def install_again(self) -> None:
        """All of pgque.sql, over itself or over a release; open transactions may hold it up."""
        if self.may_install:
            self.may_install = not self.install()

    # Consumers

    def read(self, holder: Holder, batch: int, slices: int) -> list[Event]:
        """The events of a batch, the same in every way of reading it when it is new."""
        queue, name = holder.consumer.queue, holder.consumer.name
        if self.stage.is_old or holder.batch is not None:  # the release lacks some ways
            events = rows(self.db, EVENTS, batch)
        else:
            events = read_every_way(self.db, self.reader, queue, name, batch, slices)
            # An empty batch is finished on the way, and so are all empty ones behind it.
            if value(self.db, TICKS_LEFT, batch) < 20:
                if holder.worker is None:
                    check_received(self.db, batch, RECEIVE, queue, name)
                else:
                    check_received(self.db, batch, RECEIVE_COOP, queue, name, holder.worker)
        early = [event[5] for event in events if self.due.get(event[5], now()) > now()]
        assert not early, f"{early} came before their time"
        return events

    def open(self, holder: Holder, maximum: int | None, dead: str | None, slices: int) -> bool:
        """Opens a batch, takes one over, or reads the open one once more; false if none."""
        batch = holder.open(self.db, maximum, dead)
        if batch is None:
            assert holder.batch is None, "an open batch was not given again"
            return False
        is_new = holder.batch is None
        holder.take(batch, self.read(holder, batch, slices))
        if is_new and dead is not None:
            self.take_over(holder)
        return True

    def take_over(self, holder: Holder) -> None:
        """Lets a colleague know that the batch is not his any more."""
        for other in self.holders:
            if other is not holder and other.batch is not None:
                open_now = "select count(*) from pgque.subscription where sub_batch = %s"
                if not value(self.db, open_now, other.batch):
                    assert other.consumer is holder.consumer and other.events == holder.events
                    with refused("PQ003"):
                        value(self.db, "select pgque.finish_batch(%s)", other.batch)
                    holder.settled = other.settled
                    other.drop()

    def give_back(self, holder: Holder, nth: int, for_good: bool) -> None:
        """Nacks every nth event of the batch, or makes them dead letters."""
        failed = holder.every(nth)
        ids = [event[0] for event in failed]
        given: int = value(self.db, DEAD if for_good else NACK, holder.batch, ids)
        assert given == len(failed)
        holder.settled.update(ids)
        for event in failed:
            holder.consumer.fail(event, for_good=for_good)

    @rule(
        number=which,
        maximum=st.sampled_from([None, 1, 5, 50]),
        dead=st.sampled_from([None, "0"]),
        slices=few,
    )
    def receive(self, number: int, maximum: int | None, dead: str | None, slices: int) -> None:
        self.open(pick(self.holders, number), maximum, dead, slices)

    @property
    def holding(self) -> list[Holder]:
        return [holder for holder in self.holders if holder.batch is not None]

    @property
    def leaving(self) -> list[Holder]:
        return [holder for holder in self.holding if holder.worker and not holder.settled]

    @rule(number=which, nth=few, for_good=st.booleans())
    def fail(self, number: int, nth: int, for_good: bool) -> None:
        """Gives events back before the batch is finished."""
        if holder := pick(self.holding, number):
            self.give_back(holder, nth, for_good)

    @rule(number=which, nth=st.sampled_from([0, 1, 2, 5]), for_good=st.booleans())
    def finish(self, number: int, nth: int, for_good: bool) -> None:
        """Finishes a batch, opened if need be, with every nth event given back."""
        holder = pick(self.holders, number)
        if holder.batch is None and not self.open(holder, 5, None, 2):
            return
        with self.db.transaction():
            self.give_back(holder, nth, for_good)
            value(self.db, "select pgque.finish_batch(%s)", holder.batch)
        holder.consumer.deliver(holder.events)
        holder.drop()

    @rule(number=which)
    def finish_and_roll_back(self, number: int) -> None:
        with self.db.transaction(force_rollback=True):
            batch = pick(self.holders, number).open(self.db, None, "0")
            if batch is not None:
                value(self.db, "select pgque.finish_batch(%s)", batch)

    @rule(number=which)
    def leave(self, number: int) -> None:
        """A worker gives up its batch, unseen, and comes back under its name."""
        if holder := pick(self.leaving, number):
            sql = "select pgque.{}_subconsumer(%s, 'shared', %s{})"
            names = (holder.consumer.queue, holder.worker)
            value(self.db, sql.format("unregister", ", 1"), *names)
            value(self.db, sql.format("register", ""), *names)
            self.db.execute("update pgque.retry_queue set ev_retry_after = now()")
            for event in holder.events:
                holder.consumer.expected[event[5]] -= 1
                holder.consumer.fail(event, for_good=False)
            holder.drop()

    @rule()
    def replay(self) -> None:
        """All dead letters go back to who gave them up."""
        for queue in self.queues:
            consumers = [consumer for consumer in self.consumers if consumer.queue == queue]
            ((replayed, failed, _),) = rows(
                self.db, "select * from pgque.dlq_replay_all(%s)", queue
            )
            assert (replayed, failed) == (sum(c.dead.total() for c in consumers), 0)
            for consumer in consumers:
                consumer.replay()

    # The end

    def teardown(self) -> None:
        while self.opened:
            self.commit(0, then_tick=False)
        if self.stage.is_old:
            assert self.install()
        waiting = (
            "select (select count(*) from pgque.retry_queue)"
            " + (select count(*) from pgque.delayed_events)"
        )
        while True:
            value(self.db, "select pgque.maint_retry_events()")
            value(self.db, "select pgque.maint_deliver_delayed()")
            self.tick(force=True)
            drained = sum(self.drain(holder) for holder in self.holders)
            drained += sum(self.drain_slot(slot) for slot in self.slots)
            if not drained and not value(self.db, waiting):
                break
        for consumer in self.consumers:
            name = f"{consumer.queue}/{consumer.name}"
            assert consumer.delivered == consumer.expected, f"{name} missed events"
            assert self.dead_letters(consumer) == consumer.dead, "other events were given up"

    def drain(self, holder: Holder) -> int:
        """How many events there were."""
        count = 0
        # With a maximum, one batch spans the many idle ticks that a compaction left.
        while self.open(holder, 50, None, 2):
            value(self.db, "select pgque.finish_batch(%s)", holder.batch)
            holder.consumer.deliver(holder.events)
            count += len(holder.events)
            holder.drop()
        return count

    def dead_letters(self, consumer: Consumer) -> Counter[str]:
        found = rows(
            self.db,
            "select d.ev_data from pgque.dead_letter d"
            " join pgque.queue q on q.queue_id = d.dl_queue_id"
            " join pgque.consumer c on c.co_id = d.dl_consumer_id"
            " where q.queue_name = %s and split_part(c.co_name, '#', 1) = %s",
            consumer.queue,
            consumer.name,
        )
        return Counter(payload for (payload,) in found)
