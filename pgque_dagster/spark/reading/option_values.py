"""Reads what the data source's options say."""

from collections.abc import Mapping

from ...client.errors import InvalidArgument

# What the database takes for an integer stays under this.
INTEGER = 2**31


def positive(
    options: Mapping[str, str], name: str, default: int | None = None, *, below: int = 2**63
) -> int:
    """Returns an option that is a whole number above 0.

    Args:
        options: of Spark.
        name: of the option.
        default: where it is not given; None where it must be.
        below: what the number must stay under; left out, what the database takes for a bigint.

    Raises:
        InvalidArgument: if it is no such number.
    """
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < below:
        raise InvalidArgument(
            f"option {name} of format('pgque') is {text!r}",
            f"It is a whole number from 1 to {below - 1}.",
        )
    return int(text)
