"""Unites small files of an Iceberg table, and removes those that nobody can publish any more.

Rows are copied into larger files, which nobody reads yet. Then one commit replaces the small files
by them. Like every commit, it demands that the snapshot that was read is still the newest one. If
it is not, it is repeated on the newest one without copying again, as long as all of the small files
are there: files never change. If one of them was replaced meanwhile, such as by another attempt at
its batch, the copies are removed.

So readers see each row once, and so do later attempts at a batch: they find the rows of earlier
ones by the column `batch_id`, wherever they are.

The name of a file has its batch and the epoch of its claim. A file is kept if the batch is open and
nobody claimed it later: its attempt may still work, or be stopped, and publish it. It is kept if a
snapshot refers to it that the table still has. What remains are files of attempts that were killed
or lost their lease, and of attempts that were replaced and whose snapshots expired. Windows of time
and compactions have no lease, so only their age protects the files of an attempt at one.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ....client import BatchNotOpen, Client, InvalidArgument
from ..files.data_files import DataFile, stored_schema, write_rows
from ..files.file_reader import fitted
from ..files.storage import Storage
from ..modes import TARGET_FILE_BYTES
from ..tables import FOLDER, WRITTEN
from .output import (
    RECORD,
    entries_of,
    for_one_commit,
    foreign_types,
    path_in,
    spark_columns,
    summary_of,
    why_unreadable,
)

# The names of copies.
COMPACTED = re.compile(rf"{FOLDER}/compacted-[0-9a-f]{{32}}/part-[0-9a-f]{{32}}\.parquet")
# Files of at least this size stay.
_LARGE_BYTES = TARGET_FILE_BYTES // 2
# How many snapshots stay.
_SNAPSHOTS = 1_000
# Sweeps remove copies that nobody published, if they are at least a day old.
_LONGEST = timedelta(hours=12)


def compact(table: Table, name: str, storage: Storage) -> tuple[int, int]:
    """Unites small files. Returns how many were replaced, and by how many.

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
            for batch in pq.ParquetFile(
                storage.source(path_in(table, file.file_path))
            ).iter_batches():
                yield from fitted(batch, target)

    return write_rows(rows(), storage, f"{FOLDER}/compacted-{uuid.uuid4().hex}", schema)


def _replace(
    table: Table, files: Sequence[Entry], copies: Sequence[DataFile], began: datetime
) -> bool:
    """Replaces files by copies of their rows. Returns False if one of them is gone."""
    while True:
        for_one_commit(table.refresh())
        live = {
            task.file.file_path: task.file
            for task in table.scan().plan_files()
            if not task.delete_files
        }
        if not live.keys() >= {file.file_path for file in files} or (
            datetime.now(UTC) - began > _LONGEST
        ):
            return False
        change, newest = table.transaction(), table.current_snapshot()
        kept = summary_of(newest) if newest else {}
        record = {key: value for key, value in kept.items() if key == RECORD}
        with change.update_snapshot(snapshot_properties=record).overwrite() as overwrite:
            for file in files:
                overwrite.delete_data_file(live[file.file_path])
            for copy in entries_of(change, table.location(), copies):
                overwrite.append_data_file(copy)
        # Leaves out manifests of files that are gone, and merges the others.
        with change.update_snapshot(snapshot_properties=record).merge_append():
            pass
        try:
            change.commit_transaction()
        except CommitFailedException:
            continue
        return True


def expire(table: Table, storage: Storage, retention: timedelta) -> None:
    """Forgets old snapshots, and those before the newest 1,000, with the files that describe them.

    Each batch adds a snapshot, and each commit reads and writes the list of all.
    """
    while True:
        snapshots = table.snapshots()
        before = datetime.now(UTC) - retention
        if len(snapshots) > _SNAPSHOTS:
            first = snapshots[-_SNAPSHOTS].timestamp_ms / 1000
            before = max(before, datetime.fromtimestamp(first, UTC))
        kept_by_name = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            each
            for each in snapshots
            if each.timestamp_ms < before.timestamp() * 1000
            and each.snapshot_id not in kept_by_name
        ]
        if not old:
            return
        described = _descriptions(table, old)
        try:
            table.maintenance.expire_snapshots().older_than(before).commit()
        except CommitFailedException:
            # A batch was committed meanwhile.
            table.refresh()
            continue
        # A commit under way can only refer to what describes the newest snapshot.
        described -= _descriptions(table, table.refresh().snapshots())
        storage.remove(
            path_in(table, path)
            for path in described
            if path.startswith(table.location().rstrip("/") + "/")
        )


def _descriptions(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Returns the files that list the manifests of snapshots, and these manifests."""
    return {
        path
        for snapshot in snapshots
        for path in (
            snapshot.manifest_list,
            *(manifest.manifest_path for manifest in snapshot.manifests(table.io)),
        )
    }


def old_files(storage: Storage, older_than: timedelta) -> list[str]:
    """Returns the files that attempts wrote into the location of a table, and that are older."""
    written_before = datetime.now(UTC) - older_than
    return [
        path
        for path, written_at in storage.list(FOLDER)
        if (WRITTEN.fullmatch(path) or COMPACTED.fullmatch(path)) and written_at < written_before
    ]


def of_dead_attempts(client: Client, paths: Iterable[str]) -> list[str]:
    """Returns the files whose attempts cannot publish: their epoch is not the newest any more."""
    newest_epoch = cache(partial(_newest_epoch, client))
    dead = []
    for path in paths:
        found = WRITTEN.fullmatch(path)
        newest = newest_epoch(int(found[1])) if found else None
        if newest is None or found is None or int(found[2]) < newest:
            dead.append(path)
    return dead


def unreferenced(table: Table, paths: Iterable[str]) -> list[str]:
    """Returns the files that no snapshot of the table refers to; their names are unique."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
    }
    referenced = {
        entry.data_file.file_path.rpartition("/")[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    return [path for path in paths if path.rpartition("/")[2] not in referenced]


def _newest_epoch(client: Client, batch_id: int) -> int | None:
    """Returns the epoch of the last claim, which alone may still publish; None if it has ended."""
    try:
        info = client.batch_info(batch_id)
    except BatchNotOpen:
        return None
    lease = client.lease_info(info.queue, info.consumer)
    if lease is None or lease.batch_id != batch_id or lease.owner is None:
        return None
    return lease.epoch
