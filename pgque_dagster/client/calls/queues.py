"""Queues: create, change, pause, drop."""

from collections.abc import Mapping

from ..encoding import encode
from .call import Call, nothing


def different_options(
    queue: str, options: Mapping[str, object]
) -> Call[list[tuple[str, str | None, str | None]]]:
    """The options that differ on a queue: name, present value, wanted value."""
    return Call(
        "select param_name, present, wanted from pgque.different_options(%s, %s::jsonb)",
        (queue, encode(options)),
        lambda rows: [(name, present, wanted) for name, present, wanted in rows],
    )


def check_queue(queue: str) -> Call[None]:
    """Refuses a queue that does not exist, where PgQ's own functions return no rows."""
    return Call("select count(*) from pgque.different_options(%s, '{}')", (queue,), nothing)


def queue_names() -> Call[list[str]]:
    """The names of all queues."""
    return Call(
        "select queue_name from pgque.get_queue_info()", (), lambda rows: [row[0] for row in rows]
    )
