"""Consumers: register, move and unregister."""

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
