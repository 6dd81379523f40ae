"""Checks lengths of time where they are given, not where they are used."""

from datetime import timedelta

from .errors import InvalidArgument

_LONGEST = timedelta(days=36_525)


def check_interval(name: str, value: object, *, is_zero_allowed: bool = False) -> None:
    """Checks a length of time.

    Raises:
        InvalidArgument: if it is no timedelta, negative, or longer than 100 years.
    """
    shortest = timedelta(0) if is_zero_allowed else timedelta(microseconds=1)
    if not isinstance(value, timedelta):
        raise InvalidArgument(
            f"{name}={value!r} is no length of time",
            "Pass a timedelta, such as timedelta(seconds=60).",
        )
    if not shortest <= value <= _LONGEST:
        raise InvalidArgument(
            f"{name}={value!r} is out of range",
            f"Pass {'0' if is_zero_allowed else 'more than 0'} to 100 years.",
        )
