"""Consumers: register and unregister."""

from .call import Call, first, nothing


def register_consumer(queue: str, consumer: str) -> Call[bool]:
    """Registers a consumer at the last tick; False if it is registered."""
    return Call("select pgque.register_consumer(%s, %s) = 1", (queue, consumer), first)


def unregister_consumer(queue: str, consumer: str, keep_dead_letters: bool) -> Call[None]:
    """Unregisters a consumer."""
    return Call(
        "select pgque.unregister_consumer(%s, %s, %s)",
        (queue, consumer, keep_dead_letters),
        nothing,
    )
