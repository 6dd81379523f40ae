"""Says of an unknown queue what else has its name, or suggests queues with near names."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from . import calls
from .calls.call import Steps
from .errors import QueueNotFound

_QUOTED = re.compile(r'"(.*)"')


class QueueOfAddon(QueueNotFound):
    """There is no queue of events of that name, but an add-on has a queue of that name."""


def of_addon(error: QueueNotFound) -> Steps[QueueNotFound]:
    """Returns an error that says how to use the queue, if an add-on has one of that name."""
    name = _name_in(error)
    if name is None:
        return error
    addons: list[str] = yield calls.addons.installed_addons()
    if "postgremq" in addons:
        topic: str | None = yield calls.addons.topic_of(name)
        if topic is not None:
            return QueueOfAddon(
                f'"{name}" is a queue of messages (postgremq)',
                "Use client.messages, or the functions of postgremq. Pipelines read the log of "
                f"its topic, postgremq.{topic}.",
            )
    if "qgres" in addons:
        kind: str | None = yield calls.addons.type_of_serial(name)
        if kind is not None:
            log = f" Pipelines read its log, qgres.{name}." if kind == "Serial Publisher" else ""
            return QueueOfAddon(
                f'"{name}" is a serial queue (qgres)',
                f"Use client.serial, or the functions of qgres.{log}",
            )
    return error


def near(error: QueueNotFound) -> Steps[QueueNotFound]:
    """Returns the error with the near names of the database's queues in its hint."""
    if isinstance(error, QueueOfAddon):
        return error
    names: list[str] = yield calls.queues.queue_names()
    return with_near_names(error, names)


LOOKS = (of_addon, near)
"""What is looked up about a queue that does not exist. Each look may fail for lack of rights."""


def with_near_names(error: QueueNotFound, names: Sequence[str]) -> QueueNotFound:
    """Returns the error with the near names in its hint, or as it is if there are none."""
    name = _name_in(error)
    close = get_close_matches(name, names) if name is not None else []
    if not close:
        return error
    suggestion = f"Did you mean {' or '.join(close)}?"
    return QueueNotFound(str(error.args[0]), f"{suggestion} {error.hint}".strip())


def _name_in(error: QueueNotFound) -> str | None:
    quoted = _QUOTED.search(str(error.args[0]))
    return quoted[1] if quoted else None
