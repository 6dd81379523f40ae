"""Queues that the add-ons have: those of messages, and the serial ones."""

from .call import Call


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
