"""Suggests queues whose names are near an unknown one."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from .errors import QueueNotFound

_QUOTED = re.compile(r'"(.*)"')


def with_near_names(error: QueueNotFound, names: Sequence[str]) -> QueueNotFound:
    """Returns the error with the near names in its hint, or as it is if there are none."""
    quoted = _QUOTED.search(str(error.args[0]))
    near = get_close_matches(quoted[1], names) if quoted else []
    if not near:
        return error
    suggestion = f"Did you mean {' or '.join(near)}?"
    return QueueNotFound(str(error.args[0]), f"{suggestion} {error.hint}".strip())
