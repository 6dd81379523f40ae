"""Registrations of consumers: register, move, unregister and list them."""

from collections.abc import Sequence

from .errors import SkipsEvents
from .models import ConsumerInfo, ConsumingAsset, Sought
from .operation import Call, Row, Steps, first, nothing, operation
from .queues import check_queue
from .ranges import Position, write_position


class Registrations:
    """The methods of a client for registrations."""

    @operation
    def register_consumer(
        self, queue: str, consumer: str, *, start_at: Position = "latest"
    ) -> Call[bool]:
        """Registers a consumer; returns False if it is registered already, and leaves it as it is.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            start_at: `latest`, the last tick; `earliest`, the oldest retained tick; the number of a
                tick, after which it starts; or a time with a zone, from which it gets all committed
                events.

        Raises:
            InvalidArgument: if `start_at` is not a position, or is no longer retained.
        """
        return Call(
            "select pgque.register_consumer(%s, %s, %s) = 1",
            (queue, consumer, write_position(start_at)),
            first,
        )

    @operation
    def seek(
        self, queue: str, consumer: str, position: Position, *, skip: bool = False
    ) -> Call[Sought]:
        """Moves a registered consumer, forward or back. Its retries and dead letters stay.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            position: as `start_at` of `register_consumer`.
            skip: allows it to skip events, which it will never get.

        Raises:
            SkipsEvents: if it would skip events; the message has their number.
            CallRefused: if a batch of the consumer is open.
            InvalidArgument: if `position` is not a position, or is no longer retained.
        """
        return Call(
            "select tick_id, skipped_events, repeated_events from pgque.seek(%s, %s, %s, %s)",
            (queue, consumer, write_position(position), skip),
            lambda rows: Sought(*rows[0]),
        )

    @operation
    def unregister_consumer(
        self, queue: str, consumer: str, *, keep_dead_letters: bool = False, skip: bool = False
    ) -> Steps[None]:
        """Unregisters a consumer and deletes its scheduled retries and its dead letters.

        Args:
            queue: the queue's name.
            consumer: the consumer's name.
            keep_dead_letters: keeps the dead letters. They can be replayed once the consumer is
                registered again.
            skip: allows events to be lost, and the consumer to be taken from a live lease.

        Raises:
            SkipsEvents: if that would happen; the message has the numbers.
        """
        if not skip:
            yield Call(
                "select unread, retries, case when not %s then dead_letters end, worker "
                "from pgque.registration_losses(%s, %s)",
                (keep_dead_letters, queue, consumer),
                lambda rows: _refuse_losses(queue, consumer, rows[0]),
            )
        was_registered = yield Call(
            "select pgque.unregister_consumer(%s, %s, %s) = 1",
            (queue, consumer, keep_dead_letters),
            first,
        )
        if not was_registered:
            yield check_consumer(queue, consumer)

    @operation
    def consumers(self, queue: str | None = None) -> Steps[list[ConsumerInfo]]:
        """Returns the state of a queue's consumers, or of all consumers."""
        return read_consumers(queue)


def _refuse_losses(queue: str, consumer: str, losses: Row) -> None:
    *counts, worker = losses
    kinds = ("unread events", "scheduled retries", "dead letters")
    lost = [f"{count} {kind}" for count, kind in zip(counts, kinds, strict=True) if count]
    if lost or worker is not None:
        raise SkipsEvents(
            f"consumer {consumer} on {queue} "
            + " and ".join(
                [f"would lose {', '.join(lost)}"] * bool(lost)
                + [f"has a batch in progress: {worker} has a live lease on its batch"]
                * (worker is not None)
            ),
            "Let it finish. If you want this anyway: `pgque unregister --yes`, or skip=True.",
        )


def read_consumers(queue: str | None) -> Steps[list[ConsumerInfo]]:
    """Returns the state of a queue's consumers, or of all consumers."""
    if queue is not None:
        yield check_queue(queue)
    found: list[ConsumerInfo] = yield Call(
        "select queue_name, consumer_name, case when i.last_tick is not null "
        "then coalesce(clock_timestamp() - w.waiting_since, '0') end, i.last_seen, i.last_tick, "
        "i.current_batch, i.pending_events, coalesce(u.events, 0), "
        "clock_timestamp() - u.waiting_since, w.events "
        "from pgque.get_consumer_info(%s::text) i "
        "join pgque.consumer_waits(%s::text) w using (queue_name, consumer_name) "
        "left join pgque.unticked_events(%s::text) u using (queue_name)",
        (queue, queue, queue),
        lambda rows: [ConsumerInfo(*row) for row in rows],
    )
    return found


def check_consumer(queue: str, consumer: str) -> Call[None]:
    """Raises an error if a consumer is not registered."""
    return Call("select count(*) from pgque.get_lease_info(%s, %s)", (queue, consumer), nothing)


def subscribe_slots(
    queue: str, consumer: str, slots: int, start_at: Position | None = None
) -> Call[bool]:
    """Subscribes all slots of a consumer; False if it has slots. Refuses another number of slots.

    Raises:
        InvalidArgument: if `start_at` is not a position.
    """
    start = None if start_at is None else write_position(start_at)
    return Call(
        "select pgque.subscribe_slots(%s, %s, %s, %s) = 1", (queue, consumer, slots, start), first
    )


def repartition(queue: str, consumer: str, slots: int) -> Call[int]:
    """Requests another number of slots; returns how many have not reached the switch yet."""
    return Call("select pgque.repartition(%s, %s, %s)", (queue, consumer, slots), first)


def enter_deployment(queue: str, consumer: str, asset: ConsumingAsset) -> Call[bool]:
    """Refuses a consumer of another asset; returns True if it belonged to none before."""
    return Call(
        "select pgque.enter_deployment(%s, %s, %s, %s, %s::text[]) = 1",
        (queue, consumer, asset.deployment, asset.location, list(asset.assets) or None),
        first,
    )


def move_to_deployment(queue: str, consumer: str, asset: ConsumingAsset) -> Call[str | None]:
    """Moves a consumer to an asset; returns the earlier one. The next run records what is None."""
    return Call(
        "select pgque.move_to_deployment(%s, %s, %s, %s, %s::text[])",
        (queue, consumer, asset.deployment, asset.location, list(asset.assets) or None),
        first,
    )


def note_location(
    deployment: str | None, location: str, consumers: Sequence[tuple[str, str, str]]
) -> Call[None]:
    """Records that a location is alive, and its consumers, as (queue, consumer, asset)."""
    columns = [[each[column] for each in consumers] for column in range(3)]
    return Call(
        "select pgque.note_location(%s, %s, %s::text[], %s::text[], %s::text[])",
        (deployment, location, *columns),
        nothing,
    )
