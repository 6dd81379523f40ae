"""Compacts small files of a table, and files with many deleted rows: what formats share.

In each step, Spark tasks copy the rows of some groups of files: each group, in order, into one
file, which is not read yet. Then a commit replaces the files with the copies, if the state that was
read is still the newest one. Otherwise the commit is repeated on the newest state without copying
again, for the groups whose files all still exist, because files never change. Rows that were
deleted in them meanwhile are deleted in the copy, too. If one of the files was replaced, such as by
another attempt at its batch, or deleted rows were restored, the group's copy is removed.

So readers see each row once, and so do later attempts at a batch: they find the rows of earlier
ones by the column `batch_id`, wherever they are.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ...client import InvalidArgument
from .files.data_files import DataFile, stored_schema
from .files.file_reader import ListedFile
from .files.rewriting import rewrite_files
from .files.storage import Storage, StorageFailed
from .modes import TARGET_FILE_BYTES, Maintained
from .table_output import FOLDER

# The names of copies.
COMPACTED = re.compile(rf"{FOLDER}/compacted-[0-9a-f]{{32}}/part-[0-9a-f]{{32}}\.parquet")
# Files of at least this size are not compacted.
_LARGE_BYTES = TARGET_FILE_BYTES // 2
# A file is rewritten if at least this share of its rows is deleted.
_MANY_DELETED = 0.2
# A file waits until, with all smaller ones, there is this many times its size, so that a row is not
# copied each time. Tiny ones do not wait.
_GROWTH, _TINY_BYTES = 8, 2**16
# How much is copied before a commit.
_STEP_BYTES = 8 * TARGET_FILE_BYTES
# Sweeps remove copies that were never published, if they are at least a day old.
_LONGEST = timedelta(hours=12)


@dataclass(frozen=True)
class LiveFile(ListedFile):
    """A data file of a table, and how many rows it has and how many of them are deleted."""

    rows: int = 0
    deleted_rows: int = 0


@dataclass(frozen=True)
class Copy:
    """Some files of a table, and the file with their rows; None if they have no rows."""

    files: Sequence[LiveFile]
    file: DataFile | None


class CompactedTable(ABC):
    """A table whose files are compacted: where it is, and its columns for Spark and for Arrow.

    `conflict` is the error for a commit on a state that is not the newest.
    """

    conflict: ClassVar[type[Exception]]

    def __init__(self, storage: Storage, columns: StructType, arrow: pa.Schema) -> None:
        self.storage, self.columns, self.arrow = storage, columns, stored_schema(arrow)

    @abstractmethod
    def read(self) -> list[LiveFile]:
        """Loads the newest state of the table. Returns its files.

        Raises:
            InvalidArgument: if they are not to be compacted here.
        """

    @abstractmethod
    def replace(self, copies: Sequence[tuple[Copy, BitMap64]]) -> None:
        """Commits copies in place of files, if the state that was read is still the newest.

        Args:
            copies: the copies, each with the positions of its deleted rows.
        """


def compact(spark: SparkSession, table: CompactedTable, unused: Sequence[str]) -> Maintained:
    """Compacts small files, and files with many deleted rows. Returns the result of maintenance.

    Raises:
        InvalidArgument: if its files are not to be compacted here.
        StorageFailed: if files cannot be read or written.
    """
    began, replaced, by = datetime.now(UTC), 0, 0
    for groups in _steps(_groups(table.read())):
        folder = f"{FOLDER}/compacted-{uuid.uuid4().hex}"
        written = rewrite_files(spark, table.storage, groups, folder, table.columns, table.arrow)
        copies = [Copy(*each) for each in zip(groups, written, strict=True)]
        done = _replace(table, copies, began)
        replaced += sum(len(copy.files) for copy in done)
        by += sum(copy.file is not None for copy in done)
        with suppress(StorageFailed):  # They are swept later.
            table.storage.remove(
                copy.file.path for copy in copies if copy.file and copy not in done
            )
    files = table.read()
    rows, gone = sum(file.rows for file in files), sum(file.deleted_rows for file in files)
    return Maintained(replaced, by, unused, len(files), rows, gone)


def not_compacted(name: str, problem: str) -> InvalidArgument:
    """Returns the error for a table that has something that a copy would lose."""
    return InvalidArgument(
        f"{name} has {problem}, so its files are not compacted here",
        "Compact them with an engine that knows this, such as Spark with the jars of the format.",
    )


def _groups(files: Iterable[LiveFile]) -> Iterator[list[LiveFile]]:
    """Yields groups of files, each of which becomes one file."""
    group: list[LiveFile] = []
    size = ready = 0
    for file in sorted(files, key=lambda file: file.size):
        is_deleted = file.deleted_rows >= _MANY_DELETED * file.rows
        if file.size >= _LARGE_BYTES:
            if is_deleted:
                yield [file]
            continue
        group.append(file)
        size += file.size
        if is_deleted or (
            len(group) > 1 and (file.size < _TINY_BYTES or size >= _GROWTH * file.size)
        ):
            ready = len(group)
        if size >= TARGET_FILE_BYTES:
            yield group
            group, size, ready = [], 0, 0
    if ready:
        yield group[:ready]


def _steps(groups: Iterable[list[LiveFile]]) -> Iterator[list[list[LiveFile]]]:
    step: list[list[LiveFile]] = []
    size = 0
    for group in groups:
        step.append(group)
        size += sum(file.size for file in group)
        if size >= _STEP_BYTES:
            yield step
            step, size = [], 0
    if step:
        yield step


def _replace(table: CompactedTable, copies: Sequence[Copy], began: datetime) -> Sequence[Copy]:
    """Replaces files with copies without their deleted rows. Returns the copies that are used."""
    while True:
        newest = {file.path: file for file in table.read()}
        found = ((copy, _deleted_later(table.storage, copy.files, newest)) for copy in copies)
        usable = [(copy, deleted) for copy, deleted in found if deleted is not None]
        if not usable or datetime.now(UTC) - began > _LONGEST:
            return []
        try:
            table.replace(usable)
        except table.conflict:
            continue
        return [copy for copy, _ in usable]


def _deleted_later(
    storage: Storage, files: Sequence[LiveFile], newest: Mapping[str, LiveFile]
) -> BitMap64 | None:
    """Returns the positions, in a copy, of rows that were deleted after they were copied.

    Returns None if a file is gone, or if rows that the copy lacks were restored.
    """
    if not all(file.path in newest for file in files):
        return None
    later, first = BitMap64(), 0
    if all(newest[file.path].deleted == file.deleted for file in files):
        return later
    for file in files:
        was, now = (_deleted_in(storage, each) for each in (file, newest[file.path]))
        if not was <= now:
            return None
        later |= BitMap64(first + place - was.rank(place) for place in now - was)
        first += file.rows - len(was)
    return later


def _deleted_in(storage: Storage, file: LiveFile) -> BitMap64:
    return file.deleted.positions(storage) if file.deleted else BitMap64()
