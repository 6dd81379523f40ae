"""Opens the batches of consumers: one of a normal consumer, several of a shared one."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from ..client import Client, Limits
from ..client.calls.states import ConsumerState
from ..client.cooperative import claim_shared, register_subconsumer
from ..keys import CONSUMER, LINEAGE, QUEUE
from ..registration import register

_OPENING_TTL = timedelta(seconds=30)


def open_batches(
    instance: dg.DagsterInstance,
    client: Client,
    states: Sequence[ConsumerState],
    limits: Limits,
    parallel: int,
) -> list[ConsumerState] | str:
    """Opens what is due.

    Args:
        instance: tells whether runs have worked for a consumer before.
        client: the database.
        states: the consumer's own, and behind it those of its subconsumers.
        limits: which batches to open.
        parallel: how many batches may be open at a time.

    Returns:
        The states with a batch open, or why there is none.
    """
    main = states[0]
    name = f"{main.queue}/{main.consumer}"
    if not main.queue_exists:
        return (
            f'{name}: queue "{main.queue}" does not exist. Name it in `queues` of the '
            f"PgqueResource, or create it with `pgque create-queue {main.queue}`."
        )
    if main.role is None:
        return f"{name}: {_register(instance, client, main)}"
    if main.batch_id is not None:
        # Of a consumer that is to be shared, this one ends first.
        return [main]
    if main.role == "coop_main" or (main.role == "normal" and parallel > 1):
        opened = _open_shared(client, main, states[1:], limits, parallel)
    else:
        opened = _open_normal(client, main, limits)
    return opened or f"{name}: no batch yet"


def _open_normal(client: Client, main: ConsumerState, limits: Limits) -> list[ConsumerState]:
    # One of another role is asked as well, for the error that tells what it is.
    if not main.is_due and main.role == "normal":
        return []
    batch_id = client.next_batch(main.queue, main.consumer, limits)
    return [] if batch_id is None else [_opened(main, batch_id)]


def _open_shared(
    client: Client,
    main: ConsumerState,
    members: Sequence[ConsumerState],
    limits: Limits,
    parallel: int,
) -> list[ConsumerState]:
    opened = [member for member in members if member.batch_id is not None]
    taken = {member.subconsumer for member in opened}
    free = [str(number) for number in range(1, parallel + 1) if str(number) not in taken]
    for part in free[: max(0, parallel - len(opened))] if main.is_due else []:
        if main.role == "normal":
            client.run(register_subconsumer(main.queue, main.consumer, part))
        batch = claim_shared(
            client,
            main.queue,
            main.consumer,
            part,
            owner="pgque sensor, to open it",
            ttl=_OPENING_TTL,
            limits=limits,
        )
        if batch is None:
            break
        batch.release()
        state = replace(_opened(main, batch.batch_id), subconsumer=part, epoch=batch.lease.epoch)
        opened.append(state)
    return opened


def _opened(state: ConsumerState, batch_id: int) -> ConsumerState:
    return replace(state, batch_id=batch_id, owner=None, lease_until=None, is_live=False)


def _register(instance: dg.DagsterInstance, client: Client, state: ConsumerState) -> str:
    """Registers a consumer that is new, and says so, or that it was removed."""
    # Runs for another database, or another life of this one, say nothing of this consumer.
    tags = {QUEUE: state.queue, CONSUMER: state.consumer, LINEAGE: str(client.lineage())}
    if instance.get_run_records(dg.RunsFilter(tags=tags), limit=1):
        return (
            "the consumer was removed from its queue after runs had worked for it. Register it "
            f"with `pgque register {state.queue} {state.consumer}`, and it goes on at the last "
            "tick; or take its asset out of this sensor."
        )
    return f"registered at {register(client, state.queue, state.consumer)}, no batch yet"
