"""Queues: create, change, pause, drop."""

from collections.abc import Mapping

from ..encoding import encode
from .call import Call, first, nothing


def create_queue(queue: str) -> Call[bool]:
    """Creates a queue; False if it exists."""
    return Call("select pgque.create_queue(%s) = 1", (queue,), first)


def create_queue_with(queue: str, options: Mapping[str, object]) -> Call[bool]:
    """Creates a queue or changes its options; False if it exists."""
    return Call("select pgque.create_queue(%s, %s::jsonb) = 1", (queue, encode(options)), first)


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


def pause_queue(queue: str) -> Call[None]:
    """Stops the ticks of a queue."""
    return Call("select pgque.pause_queue(%s)::text", (queue,), nothing)


def resume_queue(queue: str) -> Call[None]:
    """Resumes the ticks of a queue."""
    return Call("select pgque.resume_queue(%s)::text", (queue,), nothing)


def drop_queue(queue: str, force: bool) -> Call[None]:
    """Drops a queue."""
    return Call("select pgque.drop_queue(%s, %s)", (queue, force), nothing)


def configure_queue(queue: str, parameter: str, value: str | int | bool | None) -> Call[None]:
    """Sets one parameter of a queue."""
    text = None if value is None else encode(value)
    return Call("select pgque.set_queue_config(%s, %s, %s)", (queue, parameter, text), nothing)


def queue_names() -> Call[list[str]]:
    """The names of all queues."""
    return Call(
        "select queue_name from pgque.get_queue_info()", (), lambda rows: [row[0] for row in rows]
    )
