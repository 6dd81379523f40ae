"""How batches get into tables. Apart from the sinks, which load Arrow."""

import re
from collections.abc import Sequence
from typing import Literal

from ...client import InvalidArgument
from ...client.ranges import count_problem

BATCH_ID = "batch_id"

DeltaMode = Literal["append", "upsert", "replace"]
_OBJECT_STORE = re.compile(r"(?i)(s3a?|gc?s|az|azure|adl|abfss?|wasbs?)://?")
SchemaEvolution = Literal["fail", "add_columns"]


def check_directory(location: str) -> None:
    """Refuses the URL of an object store for a table of plain Parquet files.

    Raises:
        InvalidArgument: if it is one.
    """
    if _OBJECT_STORE.match(location):
        raise InvalidArgument(
            f"{location.partition('?')[0]} is in an object store, where plain Parquet files show "
            "rows of attempts that do not count",
            "Use DeltaSink or IcebergSink (in YAML, type: delta or iceberg), which every engine "
            "reads; docs/lake.md has both. Plain Parquet is for directories.",
        )


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
