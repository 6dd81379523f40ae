"""Queues: create, change, list and drop them, and explain an unknown queue's name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import LiteralString

from .encoding import encode
from .errors import QueueNotFound
from .models import QueueStats
from .operation import Call, Steps, first, nothing, operation

_QUOTED = re.compile(r'"(.*)"')
_QUEUES: dict[str, LiteralString] = {
    "postgremq": "select q.queue_name, 'queue of messages (postgremq)', 'messages',"
    " 'postgremq.' || q.topic_name, s.pending_count + s.processing_count,"
    " (select count(*) from postgremq.list_dlq_messages() d where d.queue_name = q.queue_name)"
    " from postgremq.list_queues() q"
    " cross join lateral postgremq.get_queue_statistics(q.queue_name) s order by q.queue_name",
    "qgres": "select queue_name, 'serial queue (qgres)',"
    " 'serial (' || regexp_replace(queue_type::text, '[^A-Z]', '', 'g') || ')',"
    " case queue_type::text when 'Serial Publisher' then 'qgres.' || queue_name end, null, null"
    " from qgres.list_queues()",
}
_LOGGED_AS = {
    "postgremq": "select postgremq.logged_as(%s)",
    "qgres": "select qgres.logged_as(%s)",
}


class Queues:
    """The methods of a client for queues."""

    @operation
    def create_queue(self, queue: str, /, **options: str | int | bool | None) -> Call[bool]:
        """Creates a queue (name of 1 to 57 bytes); returns False if it existed.

        Args:
            queue: the queue's name.
            **options: parameters as for `configure_queue`; also applied to an existing queue.
        """
        if not options:
            return Call("select pgque.create_queue(%s) = 1", (queue,), first)
        return Call("select pgque.create_queue(%s, %s::jsonb) = 1", (queue, encode(options)), first)

    @operation
    def configure_queue(self, queue: str, /, **parameters: str | int | bool | None) -> Steps[None]:
        """Sets parameters such as `ticker_max_lag="1 second"`, all or none; None resets one."""
        for parameter, value in parameters.items():
            text = None if value is None else encode(value)
            yield Call(
                "select pgque.set_queue_config(%s, %s, %s)", (queue, parameter, text), nothing
            )

    @operation
    def pause_queue(self, queue: str) -> Call[None]:
        """Stops a queue's ticks. It still accepts events and delivers them when it is resumed."""
        return Call("select pgque.pause_queue(%s)::text", (queue,), nothing)

    @operation
    def resume_queue(self, queue: str) -> Call[None]:
        """Resumes the ticks of a paused queue."""
        return Call("select pgque.resume_queue(%s)::text", (queue,), nothing)

    @operation
    def drop_queue(self, queue: str, *, force: bool = False) -> Call[None]:
        """Drops a queue and its events.

        Args:
            queue: the queue's name.
            force: drops it together with its consumers, dead letters and scheduled events.
        """
        return Call("select pgque.drop_queue(%s, %s)", (queue, force), nothing)

    @operation
    def force_next_tick(self, queue: str) -> Call[None]:
        """Makes the next ticker run tick this queue even if no tick is due."""
        return Call("select pgque.force_next_tick(%s)", (queue,), nothing)

    @operation
    def queue_stats(self) -> Call[list[QueueStats]]:
        """Returns the key figures of all queues: depth, age, rate, dead letters."""
        return Call(
            "select queue_name, depth, oldest_msg_age, consumers, events_per_sec::float8, "
            "rotation_age, ticker_paused, last_tick_time, dlq_count from pgque.queue_stats()",
            (),
            lambda rows: [QueueStats(*row) for row in rows],
        )


def different_options(
    queue: str, options: Mapping[str, object]
) -> Call[list[tuple[str, str | None, str | None]]]:
    """Returns the options that differ on a queue: name, current value, wanted value."""
    return Call(
        "select param_name, present, wanted from pgque.different_options(%s, %s::jsonb)",
        (queue, encode(options)),
        lambda rows: [(name, present, wanted) for name, present, wanted in rows],
    )


def check_queue(queue: str) -> Call[None]:
    """Raises an error if a queue does not exist; PgQ's own functions would return no rows."""
    return Call("select count(*) from pgque.different_options(%s, '{}')", (queue,), nothing)


def queue_names() -> Call[list[str]]:
    """Returns the names of all queues."""
    return Call(
        "select queue_name from pgque.get_queue_info()", (), lambda rows: [row[0] for row in rows]
    )


def installed_addons() -> Call[list[str]]:
    """Returns which of the add-ons postgremq and qgres the database has."""
    return Call(
        "select n.nspname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where n.nspname in ('postgremq', 'qgres') and p.proname = 'list_queues'",
        (),
        lambda rows: [row[0] for row in rows],
    )


@dataclass(frozen=True)
class AddonQueue:
    """A queue of an add-on.

    Attributes:
        kind: what it is, such as `serial queue (qgres)`.
        short: the same for a table, such as `serial (SP)`.
        log: the queue of events that logs it, or would log it; None if it cannot be logged.
        depth: how many messages are not finished; None if this is unknown.
        dead_letters: how many messages are dead letters; None if it has none.
    """

    name: str
    kind: str
    short: str
    log: str | None
    depth: int | None
    dead_letters: int | None

    def is_named(self, name: str) -> bool:
        """Returns whether it has the name. Names in qgres are case-insensitive."""
        return self.name == name or (self.depth is None and self.name.lower() == name.lower())


def queues_of(addon: str) -> Call[list[AddonQueue]]:
    """Returns the queues of an add-on, by name."""
    return Call(_QUEUES[addon], (), lambda rows: [AddonQueue(*row) for row in rows])


def log_topic(topic: str) -> Call[str]:
    """Creates a topic if it is missing, and logs it; returns the name of the queue."""
    return Call("select postgremq.log_topic(postgremq.create_topic(%s))", (topic,), first)


def log_serial_queue(queue: str) -> Steps[None]:
    """Creates a Serial Publisher if it is missing, and logs it."""
    found: list[AddonQueue] = yield queues_of("qgres")
    if not any(each.is_named(queue) for each in found):
        yield Call("select qgres.queue__create(%s, 'SP')", (queue,), nothing)
    yield Call("select qgres.log_queue(%s)", (queue,), nothing)


def logged_as(addon: str, name: str) -> Call[str | None]:
    """Returns the queue that logs a topic or a serial queue; None if it is not logged."""
    return Call(_LOGGED_AS[addon], (name,), first)


def _near(error: QueueNotFound) -> Steps[QueueNotFound]:
    """Returns the error with similar queue names in its hint."""
    names: list[str] = yield queue_names()
    name = _name_in(error)
    close = get_close_matches(name, names) if name is not None else []
    if not close:
        return error
    suggestion = f"Did you mean {' or '.join(close)}?"
    return QueueNotFound(str(error.args[0]), f"{suggestion} {error.hint}".strip())


def _of_addon(error: QueueNotFound) -> Steps[QueueNotFound]:
    """Returns an error that says how to use the queue, if it belongs to an add-on."""
    name = _name_in(error)
    addons: list[str] = yield installed_addons()
    for addon in addons:
        found: list[AddonQueue] = yield queues_of(addon)
        for each in found:
            if name is not None and each.is_named(name):
                log = f" Pipelines read its log, {each.log}." if each.log else ""
                return QueueNotFound(
                    f'"{name}" is a {each.kind}', f"Use the functions of {addon}.{log}"
                )
    return error


LOOKS = (_near, _of_addon)
"""The lookups for a queue that does not exist. Each may fail for lack of rights."""


def _name_in(error: QueueNotFound) -> str | None:
    quoted = _QUOTED.search(str(error.args[0]))
    return quoted[1] if quoted else None
