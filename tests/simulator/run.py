"""Runs of a simulation: a program made from a seed, and the shortest one that still fails."""

import re
from collections.abc import Callable, Sequence
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
    "shortest",
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


def simulate(url: str, steps: Program, sql: bytes, crash: Crash | None = None) -> Report:
    """Runs a program on a database with the queue installed, and drains the queues at its end.

    Args:
        url: of the database, in which there is no queue yet.
        steps: the program.
        sql: what is installed.
        crash: stops the server at once and starts it again; without it, no server is stopped.
    """
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
