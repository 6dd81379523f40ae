"""Consumers: register, move and unregister."""

from ..models import Sought
from ..positions import Position, write_position
from .call import Call, first, nothing


def register_consumer(queue: str, consumer: str, start_at: Position) -> Call[bool]:
    """Registers a consumer at a position; False if it is registered.

    Raises:
        InvalidArgument: if `start_at` is no position.
    """
    return Call(
        "select pgque.register_consumer(%s, %s, %s) = 1",
        (queue, consumer, write_position(start_at)),
        first,
    )


def seek(queue: str, consumer: str, position: Position, skip: bool) -> Call[Sought]:
    """Moves a consumer to a position; passes over events only with `skip`.

    Raises:
        InvalidArgument: if `position` is none.
    """
    return Call(
        "select tick_id, skipped_events, repeated_events from pgque.seek(%s, %s, %s, %s)",
        (queue, consumer, write_position(position), skip),
        lambda rows: Sought(*rows[0]),
    )


def unregister_consumer(queue: str, consumer: str, keep_dead_letters: bool) -> Call[bool]:
    """Unregisters a consumer; False if it is not registered."""
    return Call(
        "select pgque.unregister_consumer(%s, %s, %s) = 1",
        (queue, consumer, keep_dead_letters),
        first,
    )


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
