"""Unites the files of many batches of a directory of Parquet, beside writers and readers.

Only finished batches are united: nobody can claim them or renew a lease on them, so nobody
publishes them again. Windows of time can be stored again at any time, and stay.

1. The directories of the batches are renamed into `gathering-<id>/`, one by one. All rows are in
   the table, also if the process dies here.
2. This directory is renamed to `united-<id>/`. From here on nobody adds to it: a process that was
   stopped in step 1 finds that `gathering-<id>` is gone.
3. Spark writes its rows into `.<table>.pgque/uniting-<id>/`, where no reader looks.
4. The two directories are exchanged in one atomic step (`renameat2` of Linux). What is replaced is
   then removed.

Whoever takes steps 3 and 4 writes the same rows, so it does not matter who does it, how often, or
who was stopped in between. Each compaction removes what earlier ones left beside the table, and a
process whose rows were removed fails at step 4. `_batches-<lowest>-<highest>` in a united directory
has the ids of its batches, which are not stored again.

A reader that lists the table meanwhile may miss rows that were moved while it listed, or fail on a
file that is gone. `published_files` lists again if directories were moved.
"""

import ctypes
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ....client import BatchNotOpen, Client, InvalidArgument
from ..modes import BATCH_ID, TARGET_FILE_BYTES, Maintained
from .data_files import with_batch_id
from .file_reader import ListedFile, read_table_files
from .folders import beside, discard, write_rows
from .record import recorded_columns
from .storage import Storage, StorageFailed, sync

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ROWS = "rows"


def published_files(table: Path) -> list[ListedFile]:
    """Returns the files that count. Each row is in one of them, also while batches are united."""
    while True:
        before = _directories(table)
        files = _files(table)
        # A directory that was moved or exchanged is not there any more.
        if before <= _directories(table):
            return files


def check_not_united(table: Path, batch_id: int) -> None:
    """Refuses a batch whose rows were united, by an `InvalidArgument` that names the directory."""
    # A compaction that was killed leaves directories in each other.
    for folder in (*table.glob("united-*"), *table.glob("gathering-*")):
        of_batch = [*folder.rglob(f"batch-{batch_id}")]
        for record in folder.rglob("_batches-*"):
            _, low, high = record.name.split("-")
            if int(low) <= batch_id <= int(high) and batch_id in json.loads(record.read_text()):
                of_batch.append(record.parent)
        if of_batch:
            raise InvalidArgument(
                f"batch {batch_id} was finished, and its rows are in {of_batch[0]}",
                "The database went back in time, or this is another one: write to another "
                "directory, or remove these rows and the batch's id there.",
            )


def compact(table: Path, spark: SparkSession, client: Client) -> Maintained:
    """Unites finished batches, and small directories that were united before.

    Raises:
        StorageFailed: if the file system cannot exchange directories, or another compaction is
            under way. No row is lost then.
    """
    columns = recorded_columns(table)
    if columns is None:
        return Maintained(0, 0, [])
    aside = beside(table)
    aside.mkdir(exist_ok=True)
    for left in aside.glob("uniting-*"):
        discard(left, aside)
    try:
        unit = _gather(table, client)
        schema = with_batch_id(columns)
        return _unite(unit, aside, spark, schema) if unit else Maintained(0, 0, [])
    except FileNotFoundError as error:
        raise StorageFailed(
            f"another compaction of {table} took over: there is no {error.filename}",
            "Run one at a time.",
        ) from None
    finally:
        for trash in aside.glob(".trash-*"):
            shutil.rmtree(trash, ignore_errors=True)


def _gather(table: Path, client: Client) -> Path | None:
    """Moves what is to be united into one directory that nobody adds to any more."""
    for left in table.glob("gathering-*"):
        _close(left)
    units = [(unit, (unit / _ROWS).is_dir()) for unit in table.glob("united-*")]
    found = [
        unit for unit, done in units if not done or _size(unit, _files(unit)) < TARGET_FILE_BYTES
    ]
    found += [batch for batch in table.glob("batch-*") if _is_finished(client, batch)]
    if len(found) < 2 and all(done for _, done in units):
        return None
    gathering = table / f"gathering-{uuid.uuid4().hex}"
    gathering.mkdir()
    for each in found:
        each.rename(gathering / each.name)
    return _close(gathering)


def _close(gathering: Path) -> Path:
    unit = gathering.with_name(gathering.name.replace("gathering-", "united-"))
    gathering.rename(unit)
    sync(unit, unit.parent)
    return unit


def _unite(unit: Path, aside: Path, spark: SparkSession, schema: StructType) -> Maintained:
    """Writes the rows of a directory that nobody adds to, and puts them in its place."""
    files = _files(unit)
    batches = {int(folder.name.removeprefix("batch-")) for folder in unit.rglob("batch-*")}
    for record in unit.rglob("_batches-*"):
        batches.update(json.loads(record.read_text()))
    uniting = aside / f"uniting-{uuid.uuid4().hex}"
    uniting.mkdir()
    record = uniting / f"_batches-{min(batches, default=0)}-{max(batches, default=0)}"
    record.write_text(json.dumps(sorted(batches)))
    sync(record)
    rows = read_table_files(spark, Storage.of(unit), files, schema)
    count = 1 + _size(unit, files) // TARGET_FILE_BYTES
    in_order = rows.repartitionByRange(count, BATCH_ID).sortWithinPartitions(BATCH_ID)
    write_rows(in_order, uniting / _ROWS)
    written = _files(uniting)
    if _count(uniting, written) != _count(unit, files):
        raise StorageFailed(
            f"the rows of {unit} changed while they were united",
            "Nothing was replaced. Find out what else writes there.",
        )
    # Another compaction may have removed it, and Spark have created it again.
    record.stat()
    _exchange(uniting, unit)
    sync(unit.parent, aside)
    discard(uniting, aside)
    return Maintained(len(files), len(written), [])


def _is_finished(client: Client, folder: Path) -> bool:
    """Says whether a batch whose directory is there, so that it was opened, is not open."""
    try:
        client.batch_info(int(folder.name.removeprefix("batch-")))
    except BatchNotOpen:
        return True
    return False


def _files(folder: Path) -> list[ListedFile]:
    """Returns the files that readers of a directory find in it."""

    def found() -> Iterator[ListedFile]:
        for path, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            within = os.path.relpath(path, folder)
            # Only those of object stores need sizes.
            yield from (ListedFile(f"{within}/{x}", 0) for x in files if x.endswith(".parquet"))

    return list(found())


def _size(folder: Path, files: list[ListedFile]) -> int:
    return sum((folder / file.path).stat().st_size for file in files)


def _count(folder: Path, files: list[ListedFile]) -> int:
    return sum(pq.read_metadata(folder / file.path).num_rows for file in files)


def _directories(table: Path) -> set[tuple[str, int]]:
    return {(entry.name, entry.inode()) for entry in os.scandir(table)}


def _exchange(one: Path, other: Path) -> None:
    """Exchanges two directories in one atomic step."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call and not call(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        return
    number = ctypes.get_errno() if call else errno.ENOSYS
    if number == errno.ENOENT:
        raise FileNotFoundError(number, os.strerror(number), str(one))
    raise StorageFailed(
        f"the file system of {other} cannot exchange two directories: {os.strerror(number)}",
        "Keep the table on ext4, XFS, Btrfs or tmpfs of Linux, or use DeltaSink.",
    )
