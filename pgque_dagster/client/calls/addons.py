"""Queues that the add-ons have, those of messages and the serial ones, and their logs."""

from .call import Call, first

_LOGGED_AS = {
    "postgremq": "select postgremq.logged_as(%s)",
    "qgres": "select qgres.logged_as(%s)",
}


def installed_addons() -> Call[list[str]]:
    """The names of the add-ons of the database."""
    return Call(
        "select addon_name from pgque.addon order by addon_name",
        (),
        lambda rows: [row[0] for row in rows],
    )


def topic_of(queue: str) -> Call[str | None]:
    """The topic of a queue of postgremq; None if there is no such queue."""
    return Call(
        "select topic_name from postgremq.list_queues() where queue_name = %s",
        (queue,),
        lambda rows: rows[0][0] if rows else None,
    )


def type_of_serial(queue: str) -> Call[str | None]:
    """The type of a queue of qgres, such as Serial Publisher; None if there is no such queue."""
    return Call(
        "select queue_type::text from qgres.queue where lower(queue_name) = lower(%s)",
        (queue,),
        lambda rows: rows[0][0] if rows else None,
    )


def log_topic(topic: str) -> Call[str]:
    """Creates a topic if it is missing, and logs it; returns the name of the queue."""
    return Call("select postgremq.log_topic(postgremq.create_topic(%s))", (topic,), first)


def logged_as(addon: str, name: str) -> Call[str | None]:
    """The queue that logs a topic or a serial queue; None if it is not logged."""
    return Call(_LOGGED_AS[addon], (name,), first)
