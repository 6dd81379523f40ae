"""Numbers, durations and positions that users pass: their notation and their ranges.

They are checked when they are given. Otherwise a value out of range would fail in the database, at
each evaluation of a sensor and for all of its consumers.
"""

import re
from datetime import datetime, timedelta

from .errors import InvalidArgument

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
PATTERN = r"^\d{1,9}([smhd]| (second|minute|hour|day)s?)$"
# What an integer of the database holds.
MOST_EVENTS = 2**31 - 1
# Starting a run costs as much as storing millions of events. Reading a batch takes the same memory
# at any size.
DEFAULT_MAX_EVENTS = 10_000_000
# A run that died keeps its batch until its lease ends.
LONGEST_LEASE = timedelta(days=1)
LONGEST_WAIT = timedelta(days=365)
MOST_PARTITIONS = 256
_LONGEST_INTERVAL = timedelta(days=36_525)


def count_problem(
    name: str, value: int, *, at_least: int = 1, at_most: int = MOST_EVENTS
) -> str | None:
    """Returns what is wrong with a number of events, runs, batches or slots, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{name} is {value!r}: it must be a whole number"
    if value < at_least:
        return f"{name} is {value}: it must be {at_least} or more"
    if value > at_most:
        return f"{name} is {value}: it must be at most {at_most}"
    return None


def duration_problem(
    name: str, value: timedelta, *, positive: bool = False, at_most: timedelta = LONGEST_WAIT
) -> str | None:
    """Returns what is wrong with a duration, or None."""
    if not isinstance(value, timedelta):
        return f"{name} is {value!r}: it must be a timedelta, such as timedelta(seconds=60)"
    if value < timedelta(0):
        return f"{name} is {value}: it must not be negative"
    if positive and value == timedelta(0):
        return f"{name} is {value}: it must be more than 0"
    if value > at_most:
        return f"{name} is {value}: it must be at most {at_most}"
    return None


def check_interval(name: str, value: object, *, is_zero_allowed: bool = False) -> None:
    """Raises `InvalidArgument` for no timedelta, a negative one, or more than 100 years."""
    shortest = timedelta(0) if is_zero_allowed else timedelta(microseconds=1)
    if not isinstance(value, timedelta):
        raise InvalidArgument(
            f"{name}={value!r} is not a length of time",
            "Pass a timedelta, such as timedelta(seconds=60).",
        )
    if not shortest <= value <= _LONGEST_INTERVAL:
        raise InvalidArgument(
            f"{name}={value!r} is out of range",
            f"Pass {'0' if is_zero_allowed else 'more than 0'} to 100 years.",
        )


def parse_duration(text: str) -> timedelta:
    """Parses a number with a unit.

    Raises:
        ValueError: if the text is not a duration.
    """
    if not re.search(PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m, 12h or 30d")
    count = re.match(r"\d+", text)[0]  # type: ignore[index]
    return timedelta(**{UNITS[text[len(count) :].strip()[0]]: int(count)})


Position = str | int | datetime
"""`earliest`, `latest`, the number of a tick, or a time with a zone, also as ISO 8601 text."""

_NAMED = ("earliest", "latest")


def write_position(position: Position) -> str:
    """Returns a position as a text that the SQL functions accept.

    Raises:
        InvalidArgument: if it is not a position, or a time without a zone.
    """
    if isinstance(position, str):
        text = position.strip()
        if text in _NAMED or (text.isascii() and text.isdigit()):
            return text
        try:
            position = datetime.fromisoformat(text)
        except ValueError:
            raise _refused(position) from None
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise InvalidArgument(
                f"the position {position} has no time zone",
                "Write a time with a zone, such as 2026-05-24T18:00+00:00.",
            )
        return position.isoformat()
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise _refused(position)
    return str(position)


def _refused(position: object) -> InvalidArgument:
    return InvalidArgument(
        f"{position!r} is not a position in a queue",
        "Pass earliest, latest, the number of a tick, or a time such as 2026-05-24T18:00+00:00.",
    )


def age(value: timedelta) -> str:
    """Returns a duration as its two largest units: `3.2s`, `5m 7s`, `2h 0m`, `4d 6h`."""
    seconds = max(value.total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s"
