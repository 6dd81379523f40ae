"""How batches get into tables. Apart from the sinks, which load Arrow."""

from collections.abc import Sequence
from typing import Literal

from ...client import InvalidArgument
from ...ranges import count_problem

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


def check_table_options(schema_evolution: str, target_file_bytes: int) -> None:
    """Refuses options that no table has, by `InvalidArgument`."""
    if schema_evolution not in ("fail", "add_columns"):
        raise InvalidArgument(
            f"no schema_evolution {schema_evolution!r}", "There are fail and add_columns."
        )
    if problem := count_problem("target_file_bytes", target_file_bytes, at_most=2**63 - 1):
        raise InvalidArgument(problem, "Pass a number of bytes, such as 128 * 2**20.")


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
