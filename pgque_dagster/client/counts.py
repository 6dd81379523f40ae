"""Checks numbers that SQL functions take as `integer`."""

from .errors import InvalidArgument

_LARGEST = 2**31 - 1


def checked_count(name: str, value: object) -> int:
    """Returns a number if it is whole and from 0 to 2,147,483,647.

    Raises:
        InvalidArgument: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name}={value!r} is no whole number", "Pass an int.")
    if not 0 <= value <= _LARGEST:
        raise InvalidArgument(f"{name}={value} is out of range", f"Pass 0 to {_LARGEST}.")
    return value
