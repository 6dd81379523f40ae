"""A dump, which sees the database as it was at its begin, and reads the tables later."""

import psycopg

from .model import Divergence
from .sessions import Session
from .steps import step
from .world import QUEUES, Choices, World

# What adoption of the restored dump would write again, by consumer.
_UNFINISHED = """
select c.co_name, e.ev_data
from pgque.unfinished u
join pgque.queue q on q.queue_id = u.queue_id
join pgque.subscription_base s on s.sub_id = u.owner_id
join pgque.consumer c on c.co_id = s.sub_consumer
join pgque.event_{number} e
  on not pg_visible_in_snapshot(e.ev_txid, u.after_snapshot)
 and coalesce(pg_visible_in_snapshot(e.ev_txid, u.until_snapshot), true)
 and (e.ev_owner is null or e.ev_owner = u.owner_id)
where q.queue_name = %s
"""


@step("dumper", 6)
async def dump(world: World, choices: Choices, session: Session) -> None:
    """Begins a dump, or reads a queue for it, with all that a consumer had not finished then."""
    if not session.in_transaction:
        await session.run("begin isolation level repeatable read")
        await session.run("select pg_current_snapshot()")
        world.dump = None
        if world.is_patient:
            world.dump = {
                (consumer.queue.name, consumer.name): consumer.unfinished()
                for consumer in world.consumers
            }
        return
    expected, name = world.dump, choices.one(QUEUES)
    try:
        number = await session.value("select queue_id from pgque.queue where queue_name = %s", name)
        rows = await session.run(_UNFINISHED.format(number=number), name)
    except psycopg.Error:
        world.dump = None
        raise
    if expected is not None and world.dump is expected:
        found = {(name, consumer, payload) for consumer, payload in rows}
        for (queue, consumer), payloads in expected.items():
            lacks = [p for p in payloads if queue == name and (queue, consumer, p) not in found]
            if lacks:
                raise Divergence(f"a dump lacks {lacks} of {queue}/{consumer}")
    if choices.percent(50):
        world.dump = None
        await session.run("rollback")
