"""Unites small files of an Iceberg table beside its writers, without a row more or less.

Rows are copied into larger files, which nobody reads yet. Then one commit replaces the small files
by them. Like every commit, it demands that the snapshot that was read is still the newest one. If
it is not, the commit is repeated on the newest one without copying again, as long as all of the
small files are still there: files never change, so the copies are as good as before. If one of them
was replaced meanwhile, such as by another attempt at its batch, the copies are removed.

So readers see each row once, and so do later attempts at a batch: they find the rows of earlier
ones by the column `batch_id`, wherever they are.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table

from ....client import InvalidArgument
from ..files.data_files import DataFile, stored_schema, write_rows
from ..files.file_reader import fitted
from ..files.storage import Storage
from ..modes import TARGET_FILE_BYTES
from ..table_output import FOLDER
from .output import (
    entry_of,
    foreign_types,
    path_in,
    spark_columns,
    why_unreadable,
    without_retries,
)

# The names of copies.
COMPACTED = re.compile(rf"{FOLDER}/compacted-[0-9a-f]{{32}}/part-[0-9a-f]{{32}}\.parquet")
# Files of at least this size stay.
_LARGE_BYTES = TARGET_FILE_BYTES // 2
# Sweeps remove copies that nobody published, if they are at least a day old.
_LONGEST = timedelta(hours=12)


def compact(table: Table, name: str, storage: Storage) -> tuple[int, int]:
    """Unites small files.

    Args:
        table: the table.
        name: its name for errors.
        storage: its location.

    Returns:
        How many files were replaced, and by how many.

    Raises:
        InvalidArgument: if other engines wrote what is not understood here.
        StorageFailed: if files cannot be read or written.
    """
    began = datetime.now(UTC)
    tasks = list(table.scan().plan_files())
    small = [task.file for task in tasks if task.file.file_size_in_bytes < _LARGE_BYTES]
    problem = why_unreadable(table, tasks) or ", ".join(foreign_types(table))
    if table.spec().fields:
        problem = "partitions"
    if problem:
        raise InvalidArgument(
            f"{name} has {problem}, so its files are not united here",
            "Unite them by an engine that knows this, such as Spark with the jar of Iceberg.",
        )
    replaced = by = 0
    for group in _groups(small):
        copies = _copied(table, group, storage)
        if _replace(table, group, copies, began):
            replaced, by = replaced + len(group), by + len(copies)
        else:
            storage.remove(copy.path for copy in copies)
    return replaced, by


def _groups(files: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yields files that become one, each time."""
    group: list[Entry] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.file_size_in_bytes
        if size >= TARGET_FILE_BYTES:
            yield group
            group, size = [], 0
    if len(group) > 1:
        yield group


def _copied(table: Table, files: Sequence[Entry], storage: Storage) -> list[DataFile]:
    schema, target = spark_columns(table), stored_schema(table.schema().as_arrow())

    def rows() -> Iterator[pa.RecordBatch]:
        for file in files:
            for batch in pq.ParquetFile(storage.source(path_in(table, file))).iter_batches():
                yield from fitted(batch, target)

    return write_rows(rows(), storage, f"{FOLDER}/compacted-{uuid.uuid4().hex}", schema)


def _replace(
    table: Table, files: Sequence[Entry], copies: Sequence[DataFile], began: datetime
) -> bool:
    """Replaces files by copies of their rows. Returns False if one of them is gone."""
    while True:
        without_retries(table.refresh())
        live = {
            task.file.file_path: task.file
            for task in table.scan().plan_files()
            if not task.delete_files
        }
        if not live.keys() >= {file.file_path for file in files} or (
            datetime.now(UTC) - began > _LONGEST
        ):
            return False
        change = table.transaction()
        with change.update_snapshot().overwrite() as overwrite:
            for file in files:
                overwrite.delete_data_file(live[file.file_path])
            for copy in copies:
                overwrite.append_data_file(entry_of(change, table.location(), copy))
        # Leaves out manifests of files that are gone, and merges the others.
        with change.update_snapshot().merge_append():
            pass
        try:
            change.commit_transaction()
        except CommitFailedException:
            continue
        return True
