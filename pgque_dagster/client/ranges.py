"""The ranges of options, checked when an asset, sensor or component is defined.

A value out of range would otherwise fail in the database, at each evaluation of a sensor and for
all of its consumers.
"""

from datetime import timedelta

# What an integer of the database holds.
MOST_EVENTS = 2**31 - 1
# Starting a run costs as much as storing millions of events. Reading a batch takes the same memory
# whatever its size.
DEFAULT_MAX_EVENTS = 10_000_000
# A run that died keeps its batch for as long as its lease.
LONGEST_LEASE = timedelta(days=1)
LONGEST_WAIT = timedelta(days=365)
MOST_PARTITIONS = 256


def count_problem(
    name: str, value: int, *, at_least: int = 1, at_most: int = MOST_EVENTS
) -> str | None:
    """Returns what is wrong with a number of events, runs, batches or slots."""
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
    """Returns what is wrong with a duration."""
    if value < timedelta(0):
        return f"{name} is {value}: it must not be negative"
    if positive and value == timedelta(0):
        return f"{name} is {value}: it must be more than 0"
    if value > at_most:
        return f"{name} is {value}: it must be at most {at_most}"
    return None
