"""Queues that log what add-ons publish: the topics of postgremq, the serial queues of qgres."""

from .call import Call, first

_LOGGED_AS = {
    "postgremq": "select postgremq.logged_as(%s)",
    "qgres": "select qgres.logged_as(%s)",
}


def log_topic(topic: str) -> Call[str]:
    """Creates a topic if it is missing, and logs it; returns the name of the queue."""
    return Call("select postgremq.log_topic(postgremq.create_topic(%s))", (topic,), first)


def logged_as(addon: str, name: str) -> Call[str | None]:
    """The queue that logs a topic or a serial queue; None if it is not logged."""
    return Call(_LOGGED_AS[addon], (name,), first)


def has_serial_queue(queue: str) -> Call[bool]:
    """Whether there is a serial queue of this name."""
    return Call(
        "select exists (select from qgres.queue where lower(queue_name) = lower(%s))",
        (queue,),
        first,
    )


def create_serial_publisher(queue: str) -> Call[int]:
    """Creates a queue of type Serial Publisher; returns its id."""
    return Call("select qgres.queue__create(%s, 'SP')", (queue,), first)


def log_serial_queue(queue: str) -> Call[str]:
    """Logs a queue of type Serial Publisher; returns the name of the queue."""
    return Call("select qgres.log_queue(%s)", (queue,), first)
