"""Runs of a simulation: a program made from a seed, and the shortest one that still fails."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from . import consumers, operations, producers, slots
from .model import Consumer, Divergence, Event, Queue, Sent
from .sessions import Stuck
from .steps import STEPS, take
from .world import MAX_RETRIES, QUEUES, Holder, World

__all__ = [
    "Failure",
    "consumers",
    "operations",
    "producers",
    "program",
    "shortest",
    "simulate",
    "slots",
]

# A step's name, and the seed of what it chooses.
Program = Sequence[tuple[str, int]]
_WORKERS = ("w1", "w2")


@dataclass
class Failure:
    """How a program failed: after how many of its steps, and with what words."""

    steps: int
    error: str

    def __str__(self) -> str:
        return f"{self.steps} steps: {self.error}"

    @property
    def kind(self) -> str:
        """The words without numbers, which a shorter program changes."""
        return re.sub(r"\W*\d+", "", self.error)[:30]


@dataclass
class Report:
    """What a run did: its steps by name, its committed events, and how it failed, if it did."""

    counts: dict[str, int]
    events: int
    failure: Failure | None


def program(seed: int, steps: int) -> Program:
    """Returns the steps of a seed. A longer program begins with a shorter one."""
    random = Random(seed)
    names = list(STEPS)
    weights = [STEPS[name].weight for name in names]
    return [(random.choices(names, weights)[0], random.getrandbits(32)) for _ in range(steps)]


def simulate(url: str, steps: Program) -> Report:
    """Runs a program on a database with the queue installed, and drains the queues at its end.

    Args:
        url: of the database, in which there is no queue yet.
        steps: the program.
    """
    world = World(url)
    failure = None
    taken = 0
    try:
        _set_up(world)
        for name, seed in steps:
            taken += 1
            take(world, name, seed)
        taken += 1
        _drain(world)
    except (Divergence, Stuck) as error:
        failure = Failure(taken, str(error)[:800])
    finally:
        world.close()
    events = sum(len(queue.log) for queue in world.queues.values())
    return Report(world.counts, events, failure)


def _set_up(world: World) -> None:
    for name in QUEUES:
        queue = world.queues[name] = Queue(name)
        world.watch.execute("select pgque.create_queue(%s)", [name])
        # Room for the ticks before it that `compact_much` adds.
        world.watch.execute("update pgque.tick_log set tick_id = 1000000 where tick_id = 1")
        world.watch.execute("update pgque.queue set queue_first_tick = 1000000")
        for option, value in {
            "rotation_period": "1 microsecond",
            "max_retries": str(MAX_RETRIES),
            "ticker_max_count": "3",
        }.items():
            world.watch.execute("select pgque.set_queue_config(%s, %s, %s)", [name, option, value])
        for consumer, kind, workers in (
            ("first", "plain", ("",)),
            ("leased", "leased", _WORKERS),
            ("shared", "shared", _WORKERS),
        ):
            model = Consumer(queue, consumer)
            world.consumers.append(model)
            world.holders += [Holder(model, kind, worker) for worker in workers]
            if kind == "shared":
                for worker in workers:
                    sql = "select pgque.register_subconsumer(%s, %s, %s)"
                    world.watch.execute(sql, [name, consumer, worker])
            else:
                world.watch.execute("select pgque.register_consumer(%s, %s)", [name, consumer])
        _add_slots(world, queue)


def _add_slots(world: World, queue: Queue) -> None:
    """Two partitioned consumers: one that takes its slots' batches whole, and one by pages."""
    db = world.watch
    sql = "select pgque.slot_of_key(%s, %s)"
    of_key = {
        key: 0 if key is None else db.execute(sql.encode(), [key, slots.SLOTS]).fetchall()[0][0]
        for key in producers.KEYS
    }
    for name in ("parted", "paged"):
        db.execute("select pgque.subscribe_slots(%s, %s, %s)", [queue.name, name, slots.SLOTS])
        for number in range(slots.SLOTS):

            def wants(sent: Sent, number: int = number) -> bool:
                return of_key[sent.key] == number

            model = Consumer(queue, f"{name}#{number}/{slots.SLOTS}", wants=wants)
            world.consumers.append(model)
            if name == "parted":
                world.holders.append(Holder(model, "leased", "w1"))
            else:
                world.slots[queue.name, number] = model
                sql = "select pgque.claim_slot(%s, %s, %s, %s, '1 day')"
                db.execute(sql.encode(), [queue.name, name, number, slots.WORKER])


def _drain(world: World) -> None:
    """Ends what is open, consumes all that is left, and asks whether something never came."""
    world.finish()
    db = world.watch
    for half in (0, 1):
        sql = f"update pgque.position_log_{half} set lease_until = now() - interval '1 minute'"
        db.execute(f"{sql} where lease_until is not null".encode())
    idle = 0
    for _ in range(200):
        db.execute("update pgque.retry_queue set ev_retry_after = now()")
        db.execute("update pgque.delayed_events set de_deliver_at = now()")
        moved = 0
        for call in ("maint_retry_events", "maint_deliver_delayed"):
            moved += db.execute(f"select pgque.{call}()".encode()).fetchall()[0][0]
        db.execute("select pgque.force_next_tick(queue_name) from pgque.get_queue_info()")
        db.execute("select pgque.ticker()")
        idle = 0 if _consume(world) or moved else idle + 1
        if idle == 3:
            break
    for consumer in world.consumers:
        consumer.check_all_came()


def _consume(world: World) -> int:
    """Finishes the batches that are left; returns how many events were in them."""
    db = world.watch
    count = 0
    for holder in world.holders:
        consumer = holder.consumer
        names = [consumer.queue.name, consumer.name]
        while True:
            if holder.kind == "shared":
                sql = "select pgque.next_batch(%s, %s, %s, '0')"
                rows = db.execute(sql.encode(), [*names, holder.worker]).fetchall()
            elif holder.kind == "leased":
                sql = "select batch_id, epoch from pgque.claim_batch(%s, %s, %s)"
                rows = db.execute(sql.encode(), [*names, "drain"]).fetchall()
            else:
                sql = "select pgque.next_batch(%s, %s)"
                rows = db.execute(sql.encode(), names).fetchall()
            if not rows or rows[0][0] is None:
                break
            batch = rows[0][0]
            found = db.execute(consumers.EVENTS.encode(), [batch]).fetchall()
            events = [Event(*row) for row in found]
            ((tick,),) = db.execute(consumers.TICK.encode(), [batch]).fetchall()
            for other in world.holders:
                held = other.batch
                if other.consumer is consumer and held in consumer.open and held != batch:
                    info = db.execute(consumers.TICK.encode(), [held]).fetchall()
                    if info == [(None,)]:
                        consumer.taken_over(held, batch, events)
            consumer.opened(batch, tick, events)
            if holder.kind == "leased":
                db.execute("select pgque.ack_batch(%s, %s, %s)", [batch, "drain", rows[0][1]])
            else:
                db.execute("select pgque.finish_batch(%s)", [batch])
            consumer.finish(batch)
            count += len(events)
    return count + sum(_consume_pages(world, *key) for key in world.slots)


def _consume_pages(world: World, queue: str, number: int) -> int:
    """Acks the pages that are left of a slot; returns how many events were in them."""
    db, slot, count = world.watch, world.slots[queue, number], 0
    while rows := db.execute(slots.RECEIVE.encode(), [queue, number, 100]).fetchall():
        page = [Event(row[0], *row[2:]) for row in rows]
        batch = rows[0][1]
        ((tick,),) = db.execute(consumers.TICK.encode(), [batch]).fetchall()
        found = db.execute(consumers.EVENTS.encode(), [batch]).fetchall()
        slots.note_page(slot, batch, tick, [Event(*row) for row in found], page)
        db.execute(slots.ACK.encode(), [queue, number])
        slot.apply(batch, {event.id for event in page})
        count += len(page)
    return count


def shortest(
    steps: Program, failure: Failure, fails: Callable[[Program], Failure | None], tries: int
) -> tuple[Program, Failure]:
    """Leaves out steps while the rest still fails.

    Args:
        steps: a program that failed.
        failure: how it failed.
        fails: runs a program on a new database.
        tries: how many programs to run at most.

    Returns:
        The shortest program that was found to fail, and how it fails.
    """
    steps = list(steps[: failure.steps])
    size = len(steps) // 2
    while size and tries:
        at = 0
        while at < len(steps) and tries:
            tries -= 1
            fewer = [*steps[:at], *steps[at + size :]]
            if (found := fails(fewer)) and found.kind == failure.kind:
                steps, failure = fewer[: found.steps], found
            else:
                at += size
        size //= 2
    return steps, failure
