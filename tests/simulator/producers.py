"""Steps of producers: all ways to send, in transactions that end much later or not at all."""

from .model import Place, Sent
from .sessions import Session
from .steps import step
from .world import QUEUES, Choices, Transaction, World

_BUSY = (*QUEUES, *QUEUES[:2], *QUEUES[:1] * 3)
_SEND_IDEM = "select * from pgque.send_idem(%s, 't', %s::text, %s)"
_END_KEY = "update pgque.idem set expires_at = clock_timestamp() where idem_key = %s"
KEYS = (None, "a", "b", "c", "d", "e")


def _queue(choices: Choices) -> str:
    return choices.one(_BUSY)


async def _begun(world: World, choices: Choices, session: Session) -> Transaction:
    """The session's open transaction, or a new one."""
    if session.name not in world.transactions:
        stricter = choices.percent(20)
        isolation = choices.one(("repeatable read", "serializable")) if stricter else "default"
        await session.run(f"begin isolation level {isolation}" if stricter else "begin")
        low = world.lengths()
        if stricter:
            await session.value("select count(*) from pgque.queue")
        world.transactions[session.name] = Transaction(session, [[]], isolation, low, set())
    return world.transactions[session.name]


async def _end(world: World, choices: Choices, session: Session) -> None:
    """Ends the transaction at once, mostly; others stay open."""
    if choices.percent(70):
        await session.run("commit")
        world.committed(world.transactions.pop(session.name))


@step("producers", 30)
async def send(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    sent = Sent(_queue(choices), world.new_payload())
    await session.run("select pgque.send(%s, %s::text)", sent.queue, sent.payload)
    transaction.levels[-1].append(sent)
    await _end(world, choices, session)


@step("producers", 10)
async def send_jsonb(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    sent = Sent(_queue(choices), f'"{world.new_payload()}"')
    await session.run("select pgque.send(%s, 't', %s::jsonb)", sent.queue, sent.payload)
    transaction.levels[-1].append(sent)
    await _end(world, choices, session)


@step("producers", 25)
async def insert_with_key(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    sent = Sent(_queue(choices), world.new_payload(), choices.one(KEYS))
    await session.run(
        "select pgque.insert_event(%s, 't', %s, %s, null, null, null)",
        sent.queue,
        sent.payload,
        sent.key,
    )
    transaction.levels[-1].append(sent)
    await _end(world, choices, session)


@step("producers", 15)
async def send_batch(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    queue = _queue(choices)
    sent = [Sent(queue, world.new_payload()) for _ in range(choices.upto(6))]
    payloads = [event.payload for event in sent]
    await session.run("select pgque.send_batch(%s, 't', %s::text[])", queue, payloads)
    transaction.levels[-1] += sent
    await _end(world, choices, session)


@step("producers", 3)
async def send_many_and_roll_back(world: World, choices: Choices, session: Session) -> None:
    """Uses up so many event ids that a batch across them is read in the long way."""
    await _begun(world, choices, session)
    await session.run(
        "select pgque.send_batch(%s, 't', array_fill('undone'::text, '{1200}'))", _queue(choices)
    )
    await session.run("rollback")
    del world.transactions[session.name]


@step("producers", 10)
async def copy(world: World, choices: Choices, session: Session) -> None:
    """INSERT into the event table that is current when asked, which may be another one later."""
    transaction = await _begun(world, choices, session)
    queue = _queue(choices)
    table = await session.value("select pgque.current_event_table(%s)", queue)
    for _ in range(choices.upto(3)):
        sent = Sent(queue, world.new_payload())
        await session.run(f"insert into {table} (ev_data) values (%s)", sent.payload)
        transaction.levels[-1].append(sent)
    await _end(world, choices, session)


@step("producers", 8)
async def send_at(world: World, choices: Choices, session: Session) -> None:
    """In the past, or in an hour, which `time_passes` brings about."""
    transaction = await _begun(world, choices, session)
    sent = Sent(_queue(choices), f'"{world.new_payload()}"')
    delay = choices.one(("-1 second", "1 hour"))
    await session.run(
        "select pgque.send_at(%s, 't', %s::jsonb, clock_timestamp() + %s::interval)",
        sent.queue,
        sent.payload,
        delay,
    )
    transaction.levels[-1].append(sent)
    transaction.late.add(sent.payload)
    await _end(world, choices, session)


@step("producers", 6)
async def send_idem(world: World, choices: Choices, session: Session) -> None:
    """The same key twice: its event is there once, unless the time of the key is over."""
    transaction = await _begun(world, choices, session)
    queue, key = _queue(choices), world.new_payload()
    for is_new in (True, choices.percent(30)):
        sent = Sent(queue, world.new_payload())
        if is_new:
            await session.run(_END_KEY, key)
            transaction.levels[-1].append(sent)
        await session.run(_SEND_IDEM, queue, sent.payload, key)
    await _end(world, choices, session)


@step("producers", 6)
async def send_staged(world: World, choices: Choices, session: Session) -> None:
    """Attempts write into a staging table, and the events of one of them are published."""
    if session.name in world.transactions:
        return
    queue = _queue(choices)
    staging = await session.value("select pgque.open_staging(%s)", queue)
    attempts = []
    for _ in range(choices.upto(3)):
        table = await session.value("select pgque.staging_table(%s)", staging)
        await session.run("begin")
        sent = [Sent(queue, world.new_payload()) for _ in range(choices.upto(4))]
        for event in sent:
            await session.run(f"insert into {table} (ev_data) values (%s)", event.payload)
        attempts.append((await session.value("select pg_current_xact_id()::text"), sent))
        await session.run("commit")
    txid, sent = choices.one(attempts)
    await session.run("begin")
    transaction = Transaction(session, [[]], "default", world.lengths(), set())
    world.transactions[session.name] = transaction
    publish = "select pgque.publish_staging(%s, array[%s]::xid8[], %s)"
    for _ in range(choices.upto(2)):
        await session.run(publish, staging, txid, len(sent))
    transaction.levels[-1] += sent
    await _end(world, choices, session)


@step("producers", 10)
async def savepoint(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    await session.run(f"savepoint s{len(transaction.levels)}")
    transaction.levels.append([])


@step("producers", 6)
async def roll_back_to_savepoint(world: World, choices: Choices, session: Session) -> None:
    transaction = await _begun(world, choices, session)
    if len(transaction.levels) > 1:
        level = choices.upto(len(transaction.levels) - 1)
        await session.run(f"rollback to savepoint s{level}")
        transaction.levels[level:] = [[]]
        transaction.ticks = [tick for tick in transaction.ticks if tick[0] <= level]


@step("producers", 4)
async def tick_inside(world: World, choices: Choices, session: Session) -> None:
    """A tick that nobody sees before the producer commits, if it does."""
    transaction = await _begun(world, choices, session)
    low = world.lengths() if transaction.isolation == "default" else transaction.low
    queue = _queue(choices)
    await session.run("select pgque.force_next_tick(%s)", queue)
    tick = await session.value("select pgque.ticker(%s)", queue)
    await world.settled()
    if tick is not None:
        high = world.lengths()[queue]
        place = Place(low[queue], high)
        transaction.ticks.append((len(transaction.levels), queue, tick, place))
    transaction.ticked = True


@step("producers", 4)
async def prepare(world: World, choices: Choices, session: Session) -> None:
    """The first half of a commit in two phases. PostgreSQL refuses it after a tick's NOTIFY."""
    transaction = await _begun(world, choices, session)
    if not transaction.ticked:
        transaction.gid = f"{session.name}_{world.steps}"
        await session.run(f"prepare transaction '{transaction.gid}'")
        world.prepared.append(world.transactions.pop(session.name))


@step("producers", 5)
async def end_prepared(world: World, choices: Choices, session: Session) -> None:
    if world.prepared and session.name not in world.transactions:
        transaction = choices.one(world.prepared)
        world.prepared.remove(transaction)
        keep = choices.percent(80)
        await session.run(f"{'commit' if keep else 'rollback'} prepared '{transaction.gid}'")
        if keep:
            world.committed(transaction)


@step("producers", 30)
async def commit(world: World, choices: Choices, session: Session) -> None:
    if session.name in world.transactions:
        await session.run("commit")
        world.committed(world.transactions.pop(session.name))


@step("producers", 6)
async def roll_back(world: World, choices: Choices, session: Session) -> None:
    if session.name in world.transactions:
        await session.run("rollback")
        del world.transactions[session.name]
