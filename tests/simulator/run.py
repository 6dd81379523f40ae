"""Runs of a simulation: a program made from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import psycopg

from . import consumers, drain, dumps, operations, producers, readers, slots, standby
from .model import Consumer, Divergence, Queue
from .sessions import Stuck
from .steps import STEPS, take
from .world import MAX_RETRIES, QUEUES, Crash, Holder, World

__all__ = [
    "Failure",
    "consumers",
    "dumps",
    "operations",
    "producers",
    "program",
    "readers",
    "simulate",
    "slots",
    "standby",
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


def simulate(url: str, steps: Program, sql: bytes, crash: Crash | None = None) -> Report:
    """Runs a program on a database with the queue installed, and drains the queues at its end."""
    world = World(url, sql, crash)
    failure = None
    taken = 0
    try:
        _set_up(world)
        for name, seed in steps:
            taken += 1
            take(world, name, seed)
        taken += 1
        drain.drain(world)
    except (Divergence, Stuck, psycopg.Error) as error:
        failure = Failure(taken, str(error)[:800])
    finally:
        world.close()
        standby.drop_copies(url, world.copies)
    events = sum(len(queue.log) for queue in world.queues.values())
    return Report(world.counts, events, failure)


def _set_up(world: World) -> None:
    world.watch.execute("update pgque.config set metadata_rotation_period = '1 microsecond'")
    for name in QUEUES:
        queue = world.queues[name] = Queue(name)
        world.watch.execute("select pgque.create_queue(%s)", [name])
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
        for partitioned in slots.PARTITIONED:
            slots.subscribe(world, queue, partitioned)
