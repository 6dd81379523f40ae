"""Checks the names of the data source's options, and reads their values."""

import difflib
from collections.abc import Iterable, Mapping

from ...client.errors import InvalidArgument

# One more than the largest integer of the database.
INTEGER = 2**31


def refuse_unknown(options: Mapping[str, str], known: Iterable[str], what: str) -> None:
    """Refuses options that do not exist, because Spark passes on whatever it is given.

    Args:
        options: Spark's options; their names are in lower case.
        known: the names of the options that exist.
        what: the operation, for the message.

    Raises:
        InvalidArgument: if there is such an option. The error names the nearest ones.
    """
    names = sorted(known)
    for name in sorted(options):
        if name.lower() in names:
            continue
        near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise InvalidArgument(
            f"{what} has no option {name!r}", f"{hint}Its options are {', '.join(names)}."
        )


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
