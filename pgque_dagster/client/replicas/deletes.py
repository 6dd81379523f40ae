"""What a replica does with rows that its source no longer has, and with earlier versions of rows.

`hard` deletes them. `soft` keeps the row, with the tick at which it was deleted. `history` keeps
each version of a row, with the tick from which it was valid and the first tick at which it was not.
A batch is applied at the tick that ends it, and a copy at its own tick. So if a batch changes a row
several times, only the last change becomes a version.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from ..errors import InvalidArgument

Deletes = Literal["hard", "soft", "history"]
HARD, SOFT, HISTORY = get_args(Deletes)

# Columns besides those of the source, of type bigint.
DELETED_TICK = "__pgque_deleted_tick"
FROM_TICK, TO_TICK = "__pgque_from_tick", "__pgque_to_tick"
# The columns of each mode, with their comments. The last one is null in rows that the source has.
MARKS: dict[str, dict[str, str]] = {
    HARD: {},
    SOFT: {DELETED_TICK: "the tick at which the row was gone; null if it is there"},
    HISTORY: {
        FROM_TICK: "the tick from which on the row was valid",
        TO_TICK: "the first tick at which it was no longer valid; null if it still is",
    },
}


def stored_key(deletes: Deletes, key: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that identify a row of the replica."""
    return (*key, FROM_TICK) if deletes == HISTORY else tuple(key)


def end_mark(deletes: Deletes) -> str | None:
    """Returns the column that is null in the rows that the source has; None if there is none."""
    return next(reversed(MARKS[deletes]), None)


def check_deletes(deletes: str) -> None:
    """Raises `InvalidArgument` for an unknown value of `deletes`."""
    if deletes not in MARKS:
        raise InvalidArgument(f"no deletes {deletes!r}", f"It may be {', '.join(MARKS)}.")


def check_append(table: str, key: Sequence[str], deletes: Deletes) -> None:
    """Refuses to keep rows of a table without a key, because their versions look alike."""
    if not key and deletes != HARD:
        raise InvalidArgument(
            f"table {table} has mode: append, and its replica deletes: {deletes}",
            "Replicate it to a target with deletes: hard: rows that are only inserted stay.",
        )


def kept_by(deletes: Deletes, key: Sequence[str]) -> str:
    """Returns how a replica keeps rows, as text that is stored with the replica."""
    return HARD if deletes == HARD else f"{deletes}, by {', '.join(key)}"


def check_kept_by(replica: str, stored: str, wanted: str) -> None:
    """Refuses to write to a replica that keeps rows in another way, or by another key.

    `stored` and `wanted` are results of `kept_by`.
    """
    if stored != wanted:
        raise InvalidArgument(
            f"{replica} was made with deletes: {stored}; now it is to be {wanted}",
            "Restore the target's settings and the table's key, or move the replica away: "
            "then the table is copied into a new one, and the kept rows are where you moved it.",
        )


def unfit_type(column: str, now: str, was: str) -> InvalidArgument:
    """Returns the error for a column whose new type cannot hold the kept values."""
    return InvalidArgument(
        f"column {column} is now of type {now}, which cannot hold the values of type {was} that "
        "the replica keeps",
        "Give the column another name in the source, or move the replica away: then the table is "
        "copied into a new one, and the kept rows are where you moved it.",
    )
