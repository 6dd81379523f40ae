"""Reads the values of the data source's options."""

from collections.abc import Mapping

from ...client.errors import InvalidArgument

# One more than the largest integer of the database.
INTEGER = 2**31


def positive(
    options: Mapping[str, str], name: str, default: int | None = None, *, below: int = 2**63
) -> int:
    """Returns the value of an option that is a whole number above 0.

    Args:
        options: Spark's options.
        name: the option's name.
        default: the value if the option is missing; None if the option is required.
        below: the number must be less than this; by default, it must be a bigint.

    Raises:
        InvalidArgument: if the value is not such a number.
    """
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < below:
        raise InvalidArgument(
            f"option {name} of format('pgque') is {text!r}",
            f"It is a whole number from 1 to {below - 1}.",
        )
    return int(text)
