"""How batches get into tables. Apart from the sinks, which load Arrow."""

from collections.abc import Sequence
from typing import Literal

from ...client import InvalidArgument

BATCH_ID = "batch_id"

DeltaMode = Literal["append", "upsert", "replace"]
SchemaEvolution = Literal["fail", "add_columns"]


def check_key(key: Sequence[str]) -> None:
    """Refuses a text in place of the list of the key's columns.

    Raises:
        InvalidArgument: if it is a text.
    """
    if isinstance(key, str):
        raise InvalidArgument(
            f"key is the text {key!r}, not a list of columns", f'Write key=["{key}"].'
        )


def check_mode(mode: str, key: Sequence[str]) -> None:
    """Refuses an unknown mode of a Delta table, a merge without a key, and a key without a merge.

    Raises:
        InvalidArgument: in these cases, and as for `check_key`.
    """
    check_key(key)
    if mode not in ("append", "upsert", "replace"):
        raise InvalidArgument(f"no mode {mode!r}", "Modes are append, upsert and replace.")
    if bool(key) != (mode != "append"):
        raise InvalidArgument(
            f"mode {mode} {'needs a' if mode != 'append' else 'has no'} key",
            "A key is for upsert and replace: the columns by which rows are replaced.",
        )
