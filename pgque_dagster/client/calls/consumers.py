"""Consumers, and their parts: subconsumers, and slots such as 3/8."""

from ..positions import Position, write_position
from .call import Call, first, nothing


def check_consumer(queue: str, consumer: str) -> Call[None]:
    """Refuses a consumer that is not registered."""
    return Call("select count(*) from pgque.get_lease_info(%s, %s)", (queue, consumer), nothing)


def enter_deployment(queue: str, consumer: str, deployment: str) -> Call[bool]:
    """Refuses a consumer of another deployment; True if it belonged to none before."""
    return Call(
        "select pgque.enter_deployment(%s, %s, %s) = 1", (queue, consumer, deployment), first
    )


def move_to_deployment(queue: str, consumer: str, deployment: str) -> Call[str | None]:
    """Moves a consumer to a deployment; the earlier one."""
    return Call("select pgque.move_to_deployment(%s, %s, %s)", (queue, consumer, deployment), first)


def part_name(consumer: str, *, subconsumer: str | None = None, slot: str | None = None) -> str:
    """Returns the name under which a queue knows a subconsumer, a slot, or without both itself."""
    if slot is not None:
        return f"{consumer}#{slot}"
    return consumer if subconsumer is None else f"{consumer}.{subconsumer}"


def register_subconsumer(queue: str, consumer: str, subconsumer: str) -> Call[bool]:
    """Registers a subconsumer; False if it exists. Converts a normal consumer without a batch."""
    return Call(
        "select pgque.register_subconsumer(%s, %s, %s, true) = 1",
        (queue, consumer, subconsumer),
        lambda rows: bool(rows[0][0]),
    )


def subscribe_slots(
    queue: str, consumer: str, slots: int, start_at: Position | None = None
) -> Call[bool]:
    """Subscribes all slots of a consumer; False if it had slots. Refuses another number of them.

    Raises:
        InvalidArgument: if `start_at` is no position.
    """
    start = None if start_at is None else write_position(start_at)
    return Call(
        "select pgque.subscribe_slots(%s, %s, %s, %s) = 1", (queue, consumer, slots, start), first
    )


def repartition(queue: str, consumer: str, slots: int) -> Call[int]:
    """Gives a consumer another number of slots; how many events were copied."""
    return Call("select pgque.repartition(%s, %s, %s)", (queue, consumer, slots), first)
