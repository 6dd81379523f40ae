"""Compacts small files of a table, and files with many deleted rows: what formats share.

The rows of some files are copied, in their order, into one file, which nobody reads yet. Then a
commit replaces the files with it, if the state that was read is still the newest one. If it is not,
the commit is repeated on the newest one without copying again, as long as all of the files are
there: files never change. Rows of them that were deleted in the meantime are deleted in the copy,
too. If one of the files was replaced, such as by another attempt at its batch, or somebody restored
deleted rows, the copy is removed.

So readers see each row once, and so do later attempts at a batch: they find the rows of earlier
ones by the column `batch_id`, wherever they are.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql.types import StructType

from ...client import InvalidArgument
from .files.data_files import DataFile, stored_schema, write_rows
from .files.file_reader import ListedFile, fitted, live_rows
from .files.storage import Storage
from .modes import TARGET_FILE_BYTES, Maintained
from .table_output import FOLDER

# The names of copies.
COMPACTED = re.compile(rf"{FOLDER}/compacted-[0-9a-f]{{32}}/part-[0-9a-f]{{32}}\.parquet")
# Files of at least this size are not compacted.
_LARGE_BYTES = TARGET_FILE_BYTES // 2
# The share of deleted rows from which on a file is rewritten.
_MANY_DELETED = 0.2
# A file that is this many times as large as all smaller ones together waits for more of them.
_MUCH_LARGER = 4
# Sweeps remove copies that were never published, if they are at least a day old.
_LONGEST = timedelta(hours=12)


@dataclass(frozen=True)
class LiveFile(ListedFile):
    """A data file of a table, and how many rows it has and how many of them are deleted."""

    rows: int = 0
    deleted_rows: int = 0


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
    def replace(self, paths: Iterable[str], copy: Sequence[DataFile], deleted: BitMap64) -> None:
        """Commits a copy in place of files, if the state that was read is still the newest.

        Args:
            paths: the files.
            copy: one file, or none.
            deleted: the positions of rows of the copy that are deleted.
        """


def compact(table: CompactedTable, unused: Sequence[str]) -> Maintained:
    """Compacts small files, and files with many deleted rows. Returns the result of maintenance.

    Args:
        table: the table.
        unused: the files that were deleted before.

    Raises:
        InvalidArgument: if its files are not to be compacted here.
        StorageFailed: if files cannot be read or written.
    """
    began, storage = datetime.now(UTC), table.storage
    replaced = by = 0
    for group in _groups(table.read()):
        deleted = [_deleted_in(storage, file) for file in group]
        live = (rows for file in group for rows in live_rows(storage, file))
        fitting = (each for rows in live for each in fitted(rows, table.arrow))
        folder = f"{FOLDER}/compacted-{uuid.uuid4().hex}"
        copy = write_rows(fitting, storage, folder, table.columns, arrow=table.arrow)
        if _replace(table, group, deleted, copy, began):
            replaced, by = replaced + len(group), by + len(copy)
        else:
            storage.remove(file.path for file in copy)
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
    size, has_deleted = 0, False
    for file in sorted(files, key=lambda file: file.size):
        is_deleted = file.deleted_rows >= _MANY_DELETED * file.rows
        if file.size >= _LARGE_BYTES:
            if is_deleted:
                yield [file]
            continue
        if group and not is_deleted and file.size > _MUCH_LARGER * size:
            # It waits for more small ones, or for more of its size, so that a row is not copied
            # each time.
            if len(group) > 1 or has_deleted:
                yield group
            group, size, has_deleted = [], 0, False
        group.append(file)
        size, has_deleted = size + file.size, has_deleted or is_deleted
        if size >= TARGET_FILE_BYTES:
            yield group
            group, size, has_deleted = [], 0, False
    if len(group) > 1 or has_deleted:
        yield group


def _replace(
    table: CompactedTable,
    group: Sequence[LiveFile],
    deleted: Sequence[BitMap64],
    copy: Sequence[DataFile],
    began: datetime,
) -> bool:
    """Replaces files with a copy without their deleted rows.

    Returns False if a file is gone, or if rows that the copy lacks were restored.
    """
    while True:
        newest = {file.path: file for file in table.read()}
        if not all(file.path in newest for file in group) or datetime.now(UTC) - began > _LONGEST:
            return False
        # The positions in the copy of rows that were deleted after they were copied.
        later, first = BitMap64(), 0
        for file, was in zip(group, deleted, strict=True):
            if newest[file.path].deleted != file.deleted:
                now = _deleted_in(table.storage, newest[file.path])
                if not was <= now:
                    return False
                later |= BitMap64(first + place - was.rank(place) for place in now - was)
            first += file.rows - len(was)
        try:
            table.replace([file.path for file in group], copy, later)
        except table.conflict:
            continue
        return True


def _deleted_in(storage: Storage, file: LiveFile) -> BitMap64:
    return file.deleted.positions(storage) if file.deleted else BitMap64()
