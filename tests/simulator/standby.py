"""A standby that is promoted without the last transactions.

It is a copy of the database, which takes its place on another timeline. What the model knew at the
time of the copy is then true again, and the batch ids that were given out later are lost.
"""

import copy
import time
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .model import Consumer, Queue
from .sessions import Session
from .steps import step
from .world import Choices, Holder, World

_OTHERS = """
select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
"""


@dataclass
class Standby:
    """A copy of the database, and of the model."""

    url: str
    queues: dict[str, Queue]
    consumers: list[Consumer]
    holders: list[Holder]
    slots: dict[tuple[str, int], Consumer]
    is_patient: bool


@step("watcher", 1)
async def replicate(world: World, choices: Choices, session: Session) -> None:
    """A standby has received all that was committed so far, and nothing after it."""
    if not choices.percent(25):
        return
    world.finish()
    world.dump = None
    for each in world.sessions:
        each.db.close()
    while world.watch.execute(_OTHERS).fetchall():
        time.sleep(0.001)
    name = conninfo_to_dict(world.url)["dbname"]
    fresh = f"{str(name).split('_copy_')[0]}_copy_{len(world.copies)}"
    world.watch.execute(f"create database {fresh} template {name} strategy file_copy".encode())
    world.copies.append(fresh)
    timeline = f"alter database {fresh} set simulator.timeline = {len(world.copies) + 1}"
    world.watch.execute(timeline.encode())
    model = copy.deepcopy((world.queues, world.consumers, world.holders, world.slots))
    url = make_conninfo(world.url, dbname=fresh)
    world.standby = Standby(url, *model, is_patient=world.is_patient)
    for each in world.sessions:
        each.refresh()


@step("watcher", 1)
async def promote(world: World, choices: Choices, session: Session) -> None:
    if world.standby is None:
        return
    world.finish()
    standby, world.standby = world.standby, None
    lost = {batch for consumer in world.consumers for batch in consumer.batch_ids()}
    lost |= {batch for queue in world.queues.values() for batch in queue.lost}
    lost -= {batch for consumer in standby.consumers for batch in consumer.batch_ids()}
    world.queues, world.consumers = standby.queues, standby.consumers
    world.holders, world.slots = standby.holders, standby.slots
    world.is_patient = standby.is_patient
    world.move(standby.url)
    # Sessions that were lost had opened some of them before the copy.
    opened = "select sub_batch from pgque.position_log where sub_batch is not null"
    lost -= {batch for (batch,) in world.watch.execute(opened)}
    for queue in world.queues.values():
        queue.lost = lost


def drop_copies(url: str, copies: list[str]) -> None:
    """Drops the databases that were copied in a run."""
    with psycopg.connect(url, autocommit=True) as db:
        for name in copies:
            db.execute(f"drop database {name} with (force)".encode())
