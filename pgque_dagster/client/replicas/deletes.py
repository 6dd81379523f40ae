"""What a replica does with rows that its source has no longer, and with earlier versions of rows.

`hard` deletes them. `soft` keeps the row, with the tick at which it was gone. `history` keeps each
version of a row, with the tick from which on it held, and the first one at which it did not. A
batch is applied at the tick that ends it, and a copy at a tick of its own. So of several changes of
a row in one batch, the last one is a version.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from ..errors import InvalidArgument

Deletes = Literal["hard", "soft", "history"]
HARD, SOFT, HISTORY = get_args(Deletes)

# Columns beside those of the source, of bigint.
DELETED_TICK = "__pgque_deleted_tick"
FROM_TICK, TO_TICK = "__pgque_from_tick", "__pgque_to_tick"
# Those of each way, with their comments. The last one is null in the rows that the source has.
MARKS: dict[str, dict[str, str]] = {
    HARD: {},
    SOFT: {DELETED_TICK: "the tick at which the row was gone; null if it is there"},
    HISTORY: {
        FROM_TICK: "the tick from which on the row held",
        TO_TICK: "the first tick at which it held no longer; null if it holds",
    },
}


def stored_key(deletes: Deletes, key: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that identify a row of the replica."""
    return (*key, FROM_TICK) if deletes == HISTORY else tuple(key)


def end_mark(deletes: Deletes) -> str | None:
    """Returns the column that is null in the rows that the source has; None if all are."""
    return next(reversed(MARKS[deletes]), None)


def check_deletes(deletes: str) -> None:
    """Refuses an unknown way to treat deleted rows, by `InvalidArgument`."""
    if deletes not in MARKS:
        raise InvalidArgument(f"no deletes {deletes!r}", f"It may be {', '.join(MARKS)}.")


def check_append(table: str, key: Sequence[str], deletes: Deletes) -> None:
    """Refuses to keep rows of a table without a key, whose versions nobody can tell apart."""
    if not key and deletes != HARD:
        raise InvalidArgument(
            f"table {table} has mode: append, and its replica deletes: {deletes}",
            "Replicate it to a target with deletes: hard: rows that are only inserted stay.",
        )


def kept_by(deletes: Deletes, key: Sequence[str]) -> str:
    """Returns how a replica keeps rows, as it is stored with the replica."""
    return HARD if deletes == HARD else f"{deletes}, by {', '.join(key)}"


def check_kept_by(replica: str, stored: str, wanted: str) -> None:
    """Refuses to write into a replica that keeps rows in another way, or by another key.

    Args:
        replica: the replica, for people.
        stored: what `kept_by` returned when the replica was made.
        wanted: what it returns now.

    Raises:
        InvalidArgument: if they differ.
    """
    if stored != wanted:
        raise InvalidArgument(
            f"{replica} was made with deletes: {stored}; now it is to be {wanted}",
            "Give the target and the table's key back what they had, or move the replica away: "
            "then the table is copied into a new one, and what was kept is where you moved it.",
        )


def unfit_type(column: str, now: str, was: str) -> InvalidArgument:
    """Returns the error for a column whose new type cannot hold the values that are kept."""
    return InvalidArgument(
        f"column {column} is now of type {now}, which cannot hold the values of type {was} that "
        "the replica keeps",
        "Give the column another name in the source, or move the replica away: then the table is "
        "copied into a new one, and what was kept is where you moved it.",
    )
