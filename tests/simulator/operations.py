"""Steps of tickers, of maintenance, of an administrator, and of time."""

import psycopg

from .model import Place
from .sessions import Paused, Session
from .steps import step
from .world import QUEUES, Choices, World

# Of the tables that the functions read and write: whoever holds one stops others in the middle.
_TABLES = (
    *("position_log_0", "position_log_1", "tick_log_0", "tick_log_1", "log", "queue"),
    *("snapshot_wait", "rotation_floor", "tick_state", "history", "subscription_base"),
    *("retry_queue", "dead_letter", "delayed_events", "config"),
)
END_LEASES = """
update pgque.position_log set lease_until = now() - interval '1 minute' where lease_until > now()
"""
_STEPS = (
    "maint_retry_events()",
    "maint_deliver_delayed()",
    "maint_compact_positions()",
    "maint_copy_ticks()",
    "maint_compact_ticks()",
    "maint_compact_counters()",
    "maint_empty_half('position')",
    "maint_empty_half('tick')",
    "maint_rotate_tables_step2()",
    "maint_staging()",
    "maint_idem()",
)


@step("ticker", 20)
async def tick(world: World, choices: Choices, session: Session) -> None:
    name = choices.one(QUEUES)
    if choices.percent(80):
        await session.run("select pgque.force_next_tick(%s)", name)
    queue = world.queues[name]
    low = len(queue.log)
    number = await session.value("select pgque.ticker(%s)", name)
    await world.settled()
    if number is not None:
        queue.add_tick(number, Place(low, len(queue.log)))


@step("ticker", 4)
async def tick_in_old_snapshot(world: World, choices: Choices, session: Session) -> None:
    """A ticker whose transaction began before what others do meanwhile."""
    await session.run("begin isolation level repeatable read")
    await session.run("select pg_current_snapshot()")
    queue = world.queues[choices.one(QUEUES)]
    low = len(queue.log)
    await Paused(choices.upto(30))
    await session.run("select pgque.force_next_tick(%s)", queue.name)
    number = await session.value("select pgque.ticker(%s)", queue.name)
    await session.run("commit")
    await world.settled()
    if number is not None:
        queue.add_tick(number, Place(low, len(queue.log)))


@step("ticker", 5)
async def tick_all(world: World, choices: Choices, session: Session) -> None:
    if choices.percent(50):
        await session.run("select pgque.force_next_tick(queue_name) from pgque.get_queue_info()")
    before, low, mark = await world.last_ticks(session), world.lengths(), world.mark
    await session.run("select pgque.ticker()")
    # Maintenance that waited may have made one before.
    if world.is_alone(mark):
        await world.note_ticks(session, before, low)


@step("keeper", 10)
async def maintain(world: World, choices: Choices, session: Session) -> None:
    await session.run("select pgque.maint()")


@step("keeper", 20)
async def maintain_in_steps(world: World, choices: Choices, session: Session) -> None:
    """Some steps are in a transaction that goes on for a while."""
    goes_on = choices.percent(25)
    if goes_on:
        await session.run("begin")
    await session.run(f"select pgque.{choices.one(_STEPS)}")
    if goes_on:
        await Paused(choices.upto(8))
        await session.run("commit")


@step("keeper", 3)
async def maintain_in_old_snapshot(world: World, choices: Choices, session: Session) -> None:
    """Maintenance refuses to work with a snapshot that may be older than what it removes."""
    await session.run("begin isolation level repeatable read")
    await session.run("select pg_current_snapshot()")
    await Paused(choices.upto(15))
    rotates = choices.percent(50)
    call = "maint_rotate_tables_step1('busy')" if rotates else choices.one(_STEPS)
    try:
        await session.run(f"select pgque.{call}")
    except psycopg.Error as error:
        if error.sqlstate != "PQ013":
            raise
        await session.run("rollback")
    else:
        world.check(not rotates, "rotation did not refuse to work in an old snapshot")
        await session.run("commit")


@step("keeper", 12)
async def rotate(world: World, choices: Choices, session: Session) -> None:
    await session.run("select pgque.maint_rotate_tables_step1(%s)", choices.one(QUEUES))
    if choices.percent(60):
        await session.run("select pgque.maint_rotate_tables_step2()")


@step("keeper", 1)
async def install_again(world: World, choices: Choices, session: Session) -> None:
    """All of the file, over itself; a lock that it does not get leaves everything as it was."""
    if choices.percent(10):
        session.db.execute("set lock_timeout = '100ms'")
        try:
            session.db.execute(world.sql)
        except psycopg.errors.LockNotAvailable:
            session.db.execute("rollback")
        finally:
            session.db.execute("set lock_timeout = '60s'")


@step("keeper", 5)
async def list_operations(world: World, choices: Choices, session: Session) -> None:
    """As a scheduler does that runs each operation in a transaction of its own."""
    for name, argument in await session.run("select * from pgque.maint_operations()"):
        if name.startswith("pgque."):
            call = f"{name}({'' if argument is None else '%s'})"
            await session.run(f"select {call}", *([] if argument is None else [argument]))


@step("keeper", 2)
async def change_patience(world: World, choices: Choices, session: Session) -> None:
    """How long maintenance waits for snapshots that are held, such as those of dumps."""
    patience = choices.one(("0", "1 hour", "1 hour"))
    if patience == "0":
        world.is_patient, world.dump = False, None
    await session.run("select pgque.set_snapshot_patience(%s::interval)::text", patience)
    if patience == "0":
        world.dump = None
    world.is_patient = patience != "0"


@step("keeper", 3)
async def change_retention(world: World, choices: Choices, session: Session) -> None:
    """How long events stay that no consumer needs."""
    await session.run(
        "select pgque.set_queue_config(%s, 'retention', %s)",
        choices.one(QUEUES),
        choices.one((None, None, "1 microsecond", "1 hour")),
    )


@step("keeper", 6)
async def time_passes(world: World, choices: Choices, session: Session) -> None:
    """Delayed events and retries are due, leases end, and events are retained no longer."""
    await session.run("begin")
    earlier = "queue_switch_time = queue_switch_time - interval '1 day'"
    await session.run(f"update pgque.queue set {earlier} where queue_retention is not null")
    if choices.percent(30):
        await session.run(END_LEASES)
    await session.run("update pgque.retry_queue set ev_retry_after = now()")
    await session.run("update pgque.delayed_events set de_deliver_at = now()")
    await session.run("commit")


@step("keeper", 3)
async def look(world: World, choices: Choices, session: Session) -> None:
    """What a monitor reads, in a snapshot that it holds meanwhile."""
    await session.run("begin isolation level repeatable read read only")
    await session.run("select * from pgque.queue_health()")
    await session.run("select * from pgque.get_consumer_info()")
    await session.run("select * from pgque.otel_metrics()")
    await session.run("commit")


@step("blocker", 12)
async def hold_table(world: World, choices: Choices, session: Session) -> None:
    """Locks a table of the engine, so that calls stop in their middle."""
    await session.run("rollback")
    await session.run("begin")
    mode = choices.one(("share", "exclusive", "access exclusive"))
    await session.run(f"lock table pgque.{choices.one(_TABLES)} in {mode} mode")


@step("blocker", 12)
async def let_go(world: World, choices: Choices, session: Session) -> None:
    await session.run("rollback")


@step("watcher", 4)
async def cancel(world: World, choices: Choices, session: Session) -> None:
    """Cancels a statement that waits."""
    if waiting := world.waiting():
        victim = choices.one(waiting)
        if victim.is_waiting:
            victim.cancel()


@step("watcher", 3)
async def terminate(world: World, choices: Choices, session: Session) -> None:
    """Ends a session, whatever it does or has open."""
    victim = choices.one([s for s in world.sessions if s is not session])
    victim.terminate()
    if not victim.is_waiting:
        world.forget(victim)


@step("watcher", 1)
async def crash(world: World, choices: Choices, session: Session) -> None:
    """The server stops at once, and recovers what was committed."""
    if world.crash and choices.percent(20):
        world.crash()
        world.lose_connections()
