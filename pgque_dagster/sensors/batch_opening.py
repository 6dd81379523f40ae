"""Opens the next batch of a consumer, or of each slot of a partitioned consumer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from ..client import Client, ConsumerInfo, Limits
from ..client.holder import ConsumerState, Holder, consumer_states
from ..client.registrations import repartition, subscribe_slots
from ..project.consumers import AssetConsumer
from ..project.keys import CONSUMER, INCARNATION, QUEUE, of_shard
from ..project.queue_report import CHECK_TICKS, waiting_for_tick
from ..project.registration import how_to_create, how_to_register_again, register

# By default a tick follows an event within seconds.
_TICKS_ARE_LATE = timedelta(seconds=30)


def open_batches(
    instance: dg.DagsterInstance,
    client: Client,
    states: Sequence[ConsumerState],
    limits: Limits,
    consumer: AssetConsumer,
    read_infos: Callable[[], Mapping[tuple[str, str], ConsumerInfo]],
) -> list[ConsumerState] | str:
    """Opens the due batches of a consumer.

    Args:
        instance: knows whether the consumer had runs before.
        client: the database.
        states: the state of the consumer, then the states of its slots.
        limits: which batches to open.
        consumer: says where a new consumer starts, and how many slots it has.
        read_infos: returns what waits for each consumer, by (queue, name); called if no batch is
            open.

    Returns:
        The states that have an open batch, or the reason why there is none.

    Raises:
        CallRefused: if the consumer has subconsumers.
    """
    main = states[0]
    if not main.queue_exists:
        return (
            f'queue "{main.queue}" does not exist. {how_to_create(main.queue, consumer.database)}'
        )
    if main.role is None:
        return _register(instance, client, main, consumer)
    names = [(main.queue, main.consumer)]
    if consumer.partitions is not None or main.role == "partitioned":
        opened = _open_slots(client, states, limits, consumer.partitions)
        if isinstance(opened, str):
            return opened
        names = [(slot.queue, Holder.of(slot).name) for slot in states[1:]]
    elif main.batch_id is not None:
        return [main]
    elif main.is_due or main.role != "normal":
        # Opening for a consumer of another role raises the error that names its role.
        opened = _open(client, main, limits)
    else:
        opened = []
    return opened or f"no batch yet{_why_no_batch(names, read_infos(), limits)}"


def _why_no_batch(
    names: Sequence[tuple[str, str]],
    infos: Mapping[tuple[str, str], ConsumerInfo],
    limits: Limits,
) -> str:
    """Returns what the next batch of one of the names waits for, as the end of a sentence."""
    found = [infos[name] for name in names if name in infos]
    if not found:
        return ""
    info = max(found, key=lambda each: each.pending_events or 0)
    if info.pending_events:
        return (
            f", up to {info.pending_events} events wait: it is opened at "
            f"min_events={limits.min_count}, or when the oldest has waited "
            f"max_age={limits.min_interval}"
        )
    if not info.unticked_events:
        return ", no event waits"
    reason = f", {waiting_for_tick(info)}"
    if (info.unticked_age or timedelta(0)) < _TICKS_ARE_LATE:
        return reason
    return f"{reason}: {CHECK_TICKS}"


def _open_slots(
    client: Client, states: Sequence[ConsumerState], limits: Limits, partitions: int | None
) -> list[ConsumerState] | str:
    """Opens the due batches of slots.

    If the asset wants another number of slots, each slot gets its events up to the same tick and no
    further. Once all of these are acked, the number changes. If somebody has unsubscribed slots,
    they are named while the other slots have nothing to open.

    Raises:
        InvalidArgument: if the consumer is registered without slots.
    """
    main, *slots = states
    if main.role != "partitioned":
        assert partitions is not None
        # Raises the error that says what to do.
        client.run(subscribe_slots(main.queue, main.consumer, partitions))
    # A slot is named i/n. If somebody has unsubscribed some, there are fewer than n.
    now = int(str(slots[0].slot).rpartition("/")[2])
    if partitions is None:
        return f"the consumer has {now} slots: set partitions={now} on its asset"
    if now != partitions:
        client.run(repartition(main.queue, main.consumer, partitions))
        _, *slots = client.run(consumer_states([(main.queue, main.consumer)], limits))
    opened = [slot for slot in slots if slot.batch_id is not None]
    for slot in slots:
        if slot.is_due and not slot.is_live:
            opened += _open(client, slot, limits)
    if not opened and len(slots) < partitions:
        queue, consumer = (name.replace("'", "''") for name in (main.queue, main.consumer))
        return (
            f"only {len(slots)} of the consumer's {partitions} slots "
            f"{'is' if len(slots) == 1 else 'are'} subscribed, so events of other keys get no run. "
            f"Subscribe them, from the last tick on, with: select pgque.subscribe_slots("
            f"'{queue}', '{consumer}', {partitions});"
        )
    # The oldest batch comes first, so that each slot has its turn if only few runs are requested.
    return sorted(opened, key=lambda slot: slot.batch_id or 0)


def _open(client: Client, state: ConsumerState, limits: Limits) -> list[ConsumerState]:
    """Opens the next batch of a consumer or slot; returns its state, or nothing without a batch."""
    opened = client.run(Holder.of(state).open(limits))
    if opened is None:
        return []
    batch_id, epoch = opened
    return [replace(state, batch_id=batch_id, epoch=epoch, owner=None)]


def _register(
    instance: dg.DagsterInstance, client: Client, state: ConsumerState, consumer: AssetConsumer
) -> str:
    """Registers a new consumer. Returns a message, also for a consumer that was removed."""
    # Without the incarnation, runs for another database would make a new consumer look removed.
    incarnation = of_shard(INCARNATION, consumer.shard)
    tags = {QUEUE: state.queue, CONSUMER: state.consumer, incarnation: str(client.incarnation())}
    if instance.get_run_records(dg.RunsFilter(tags=tags), limit=1):
        return (
            "the consumer was removed from its queue after it had runs, or the queue was dropped "
            f"and created again. "
            f"{how_to_register_again(state.queue, state.consumer, consumer.database)} Or remove "
            "its asset from this sensor."
        )
    start = register(client, state.queue, state.consumer, consumer.start_at, consumer.partitions)
    return f"registered at {start}, no batch yet"
