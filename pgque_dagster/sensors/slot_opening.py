"""Opens the batches of a partitioned consumer: one in each slot, and none while slots change."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ..client import Client, Limits
from ..client.calls.states import ConsumerState, consumer_states
from ..client.holder import Holder
from ..client.partitions import repartition, subscribe_slots

_OPENING_TTL = timedelta(seconds=30)


def open_slots(
    client: Client, states: Sequence[ConsumerState], limits: Limits, partitions: int | None
) -> list[ConsumerState] | str:
    """Opens the batches of slots that are due.

    If the asset wants another number of slots, no batch is opened until those that are open are
    acked: their results may be stored already, and their events must not come again in other
    batches. Then the events that nobody has finished are divided among the new slots. Slots that
    somebody has unsubscribed are named while the others have nothing to open.

    Args:
        client: the database.
        states: the state of the consumer, then those of its slots.
        limits: which batches to open.
        partitions: how many slots the asset wants; None for none.

    Returns:
        The states that have a batch open, or the reason why none can be opened.

    Raises:
        InvalidArgument: if the consumer is registered without slots.
    """
    main, *slots = states
    if main.role != "partitioned":
        assert partitions is not None
        # Raises the error that says how to go on.
        client.run(subscribe_slots(main.queue, main.consumer, partitions))
    now = _count(slots)
    if partitions is None:
        return f"the consumer has {now} slots: set partitions={now} on its asset"
    opened = [slot for slot in slots if slot.batch_id is not None]
    if now != partitions:
        if opened:
            return opened
        client.run(repartition(main.queue, main.consumer, partitions))
        _, *slots = client.run(consumer_states([(main.queue, main.consumer)], limits))
    for slot in slots:
        if slot.is_due and not slot.is_live:
            opened += filter(None, [open_batch(client, slot, limits)])
    if not opened and len(slots) < partitions:
        queue, consumer = (name.replace("'", "''") for name in (main.queue, main.consumer))
        return (
            f"only {len(slots)} of the consumer's {partitions} slots "
            f"{'is' if len(slots) == 1 else 'are'} subscribed, so events of other keys get no run. "
            f"Subscribe them, from the last tick on, with: select pgque.subscribe_slots("
            f"'{queue}', '{consumer}', {partitions});"
        )
    # The oldest batch first, so that each slot has its turn if few runs are requested at a time.
    return sorted(opened, key=lambda slot: slot.batch_id or 0)


def _count(slots: Sequence[ConsumerState]) -> int:
    return int(str(slots[0].slot).partition("/")[2])


def open_batch(client: Client, state: ConsumerState, limits: Limits) -> ConsumerState | None:
    """Opens the next batch of a slot or subconsumer. Returns its state; None without a batch.

    Args:
        client: the database.
        state: the state of the slot or subconsumer, which has no batch.
        limits: which batch to open.
    """
    # Only a claim opens a batch of a part.
    batch = Holder.of(state).claim(
        client, owner="pgque sensor, to open it", ttl=_OPENING_TTL, limits=limits
    )
    if batch is None:
        return None
    batch.release()
    return replace(state, batch_id=batch.batch_id, epoch=batch.lease.epoch, owner=None)
