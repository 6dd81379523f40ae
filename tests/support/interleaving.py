"""Everything that a queue's users do, in an order that Hypothesis chooses, beside a plain model.

One thread drives many connections, so that a seed fixes the order of all that happens. The model is
the events that committed, counted; each consumer must get just those, retries and replays included,
and its dead letters must be those that it gave up.
"""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.support.interleaving_model import MAX_RETRIES, Consumer, Event, Holder, Stage, now
from tests.support.interleaving_producers import Producing, few, pick, which
from tests.support.queues import bloat_positions, bloat_ticks, make_queue, refused, rows, value

EVENTS = "select * from pgque.get_batch_events(%s)"
NACK = "select pgque.nack_batch(%s, %s::bigint[], '0')"
DEAD = "select pgque.dead_letter_batch(%s, %s::bigint[], 'bad')"
WORKERS = ("w1", "w2")


class Interleaving(Producing):
    """The rules, each a step; ending an example ends all that is open and drains the queue."""

    def __init__(self, stage: Stage) -> None:
        stage.clear()
        *alone, shared = consumers = [Consumer("first"), Consumer("second"), Consumer("shared")]
        super().__init__(stage, consumers)
        self.db, self.reader = stage.db, stage.reader
        # Installing takes long, so not in each example.
        self.may_install = stage.examples % 3 == 1
        if stage.examples % 6 == 4:
            stage.install_release()
        self.holders = [Holder(consumer) for consumer in alone]
        self.holders += [Holder(shared, worker) for worker in WORKERS]
        make_queue(
            self.db,
            consumers=[consumer.name for consumer in alone],
            rotation_period="1 microsecond",
            max_retries=str(MAX_RETRIES),
            ticker_max_count="3",
        )
        for worker in WORKERS:
            value(self.db, "select pgque.register_subconsumer('q', 'shared', %s)", worker)

        stage.steps -= 1  # what follows runs once before the first step, too

    def check_invariants(self, *args: Any, **kwargs: Any) -> None:
        self.stage.steps += 1
        super().check_invariants(*args, **kwargs)

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
        """What a scheduler does: retries and delayed events get into the next batch."""
        value(self.db, "select pgque.maint()")
        self.tick(force=False)

    @rule()
    def install_again(self) -> None:
        """All of pgque.sql, over itself or over a release; open transactions may hold it up."""
        if self.may_install:
            self.may_install = not self.stage.install()

    # Consumers

    def read(self, batch: int, slices: int) -> list[Event]:
        """The events of a batch, the same on two connections and by its read plan."""
        events = rows(self.db, EVENTS, batch)
        assert rows(self.reader, EVENTS, batch) == events, "another connection reads another batch"
        plan = rows(self.db, "select slice_sql from pgque.batch_read_plan(%s, %s)", batch, slices)
        sliced = [row for (text,) in plan for row in rows(self.reader, text)]
        assert sorted(sliced) == sorted(events), "the slices are not the batch"
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
        holder.take(batch, self.read(batch, slices))
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
            sql = "select pgque.{}_subconsumer('q', 'shared', %s{})"
            value(self.db, sql.format("unregister", ", 1"), holder.worker)
            value(self.db, sql.format("register", ""), holder.worker)
            self.db.execute("update pgque.retry_queue set ev_retry_after = now()")
            for event in holder.events:
                holder.consumer.expected[event[5]] -= 1
                holder.consumer.fail(event, for_good=False)
            holder.drop()

    @rule()
    def replay(self) -> None:
        """All dead letters go back to who gave them up."""
        ((replayed, failed, _),) = rows(self.db, "select * from pgque.dlq_replay_all('q')")
        assert (replayed, failed) == (sum(c.dead.total() for c in self.consumers), 0)
        for consumer in self.consumers:
            consumer.replay()

    # The end

    def teardown(self) -> None:
        while self.opened:
            self.commit(0, then_tick=False)
        if self.stage.is_old:
            assert self.stage.install()
        waiting = (
            "select (select count(*) from pgque.retry_queue)"
            " + (select count(*) from pgque.delayed_events)"
        )
        while True:
            value(self.db, "select pgque.maint_retry_events()")
            value(self.db, "select pgque.maint_deliver_delayed()")
            value(self.db, "select pgque.force_next_tick('q')")
            value(self.db, "select pgque.ticker()")
            drained = sum([self.drain(holder) for holder in self.holders])
            if not drained and not value(self.db, waiting):
                break
        for consumer in self.consumers:
            assert consumer.delivered == consumer.expected, f"{consumer.name} missed events"
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
            " join pgque.consumer c on c.co_id = d.dl_consumer_id where c.co_name = %s",
            consumer.name,
        )
        return Counter(payload for (payload,) in found)
