"""The modes of storing batches in tables. Separate from the sinks, which load Arrow."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from ...client import InvalidArgument
from ...client.read_batch import ReadBatch

BATCH_ID = "batch_id"
# The size of the files into which small ones are compacted.
TARGET_FILE_BYTES = 128 * 2**20

TableMode = Literal["append", "upsert"]
_OBJECT_STORE = re.compile(r"(?i)(s3a?|gc?s|az|azure|adl|abfss?|wasbs?)://?")
SchemaEvolution = Literal["fail", "add_columns"]


@dataclass(frozen=True)
class Maintained:
    """The result of a table's maintenance.

    Attributes:
        replaced: how many small files were replaced.
        by: how many files took their place.
        deleted: the paths of other files that were deleted, relative to the table.
        files: how many data files the table has now.
        rows: how many rows they have, including deleted ones.
        deleted_rows: how many rows are deleted, by deletion vectors or by position.
    """

    replaced: int
    by: int
    deleted: Sequence[str]
    files: int
    rows: int
    deleted_rows: int


def check_directory(location: str) -> None:
    """Raises `InvalidArgument` for a plain Parquet table at the URL of an object store."""
    if _OBJECT_STORE.match(location):
        raise InvalidArgument(
            f"{location.partition('?')[0]} is in an object store, where plain Parquet files show "
            "rows of attempts that do not count",
            "Use DeltaSink or IcebergSink (in YAML, type: delta or iceberg), which every engine "
            "reads; docs/lake.md has both. Plain Parquet is for directories.",
        )


def check_mode(
    mode: str,
    key: Sequence[str],
    modes: Sequence[str] = get_args(TableMode),
    what: str = "the columns by which rows are replaced",
) -> None:
    """Refuses an unknown mode, a merge without a key, and a key without a merge.

    All modes but the first one need a key.

    Raises:
        InvalidArgument: in these cases, and if the key is a string instead of a list.
    """
    if isinstance(key, str):
        raise InvalidArgument(
            f"key is the text {key!r}, not a list of columns", f'Write key=["{key}"].'
        )
    first, *merging = modes
    if mode not in modes:
        *others, last = modes
        raise InvalidArgument(f"no mode {mode!r}", f"Modes are {', '.join(others)} and {last}.")
    if bool(key) != (mode != first):
        raise InvalidArgument(
            f"mode {mode} {'needs a' if mode != first else 'has no'} key",
            f"A key is for {' and '.join(merging)}: {what}.",
        )


def refuse_window(claim: ReadBatch, target: str) -> None:
    """Raises `InvalidArgument` for a window if its earlier output cannot be identified."""
    if claim.is_window:
        raise InvalidArgument(
            f"{target} cannot replace the rows of a window when it is materialized again",
            "Store windows as Parquet, or in a Delta or Iceberg table by append.",
        )


def check_retention(age: timedelta) -> None:
    """Raises `InvalidArgument` for a retention that may remove files of running attempts."""
    if age < timedelta(days=1):
        raise InvalidArgument(
            f"a retention of {age} may remove files of attempts that are under way",
            "Give at least a day.",
        )
