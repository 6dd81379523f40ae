"""Compacts files of an Iceberg table, and finds files that can no longer be published.

The name of a file has its batch and the epoch of its claim. A file is kept if the batch is open and
has no later claim: its attempt may still be running, or be suspended, and publish it. It is also
kept if a snapshot that the table still has refers to it. The other files belong to attempts that
were killed or lost their lease, or that were replaced and whose snapshots expired. Time windows and
compactions have no lease, so only their age protects the files of a running attempt.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyroaring import BitMap64

from ....client import BatchNotOpen, Client
from ..compaction import COMPACTED, CompactedTable, Copy, LiveFile, not_compacted
from ..files.copy_files import kept_files
from ..files.storage import Storage
from ..table_output import FOLDER, WRITTEN
from .commit import RECORD, entries_of, last_change, properties_with, summary_of
from .deletes import unneeded, write_positions
from .snapshot import commit_snapshot
from .table_files import (
    foreign_types,
    path_in,
    planned,
    root_of,
    searched,
    spark_columns,
    why_unreadable,
)

# How many snapshots are kept.
_SNAPSHOTS = 1_000


class IcebergFiles(CompactedTable):
    """A table, with its name for errors, whose files are compacted."""

    conflict = CommitFailedException

    def __init__(self, table: Table, name: str, storage: Storage) -> None:
        super().__init__(storage, spark_columns(table), table.schema().as_arrow())
        self._table, self._name = table, name
        self._tasks: list[FileScanTask] = []

    def read(self) -> list[LiveFile]:
        """Loads the newest state of the table. Returns its files."""
        table = self._table.refresh()
        self._tasks = tasks = planned(table)
        problem = why_unreadable(table, tasks) or ", ".join(foreign_types(table))
        if problem or table.spec().fields:
            raise not_compacted(self._name, problem or "partitions")
        deleted = (sum(file.record_count for file in task.delete_files) for task in tasks)
        return [
            LiveFile(file.path, file.size, file.deleted, task.file.record_count, count)
            for task, file, count in zip(tasks, searched(table, tasks), deleted, strict=True)
        ]

    def replace(self, copies: Sequence[tuple[Copy, BitMap64]]) -> None:
        """Commits copies in place of files, if the state that was read is still the newest."""
        table, root = self._table, root_of(self._table)
        gone = {root + file.path for copy, _ in copies for file in copy.files}
        written = [(copy.file, deleted) for copy, deleted in copies if copy.file]
        added = list(entries_of(table.metadata, [file for file, _ in written]))
        for entry, (file, deleted) in list(zip(added, written, strict=True)):
            if deleted:
                folder, path = file.path.rpartition("/")[0], entry.file_path
                spec_id = table.metadata.default_spec_id
                added.append(write_positions(self.storage, root, folder, path, deleted, spec_id))
        _commit_same_rows(table, added, gone | unneeded(self._tasks, gone))


def _keep_record(table: Table) -> None:
    """Gives the newest snapshot the record of the last one that changed rows, which may expire.

    It lacks the record after another engine's compaction.
    """
    newest = table.current_snapshot()
    if newest and RECORD not in summary_of(newest) and last_change(table)[1]:
        # After a conflict, the newest snapshot is a different one.
        with suppress(CommitFailedException):
            _commit_same_rows(table)


def _commit_same_rows(
    table: Table, added: Sequence[Entry] = (), gone: Collection[str] = ()
) -> None:
    """Commits a snapshot that changes no row, with the record of the last one that did."""
    (_, record), wanted = last_change(table), table.metadata
    summary = {"operation": Operation.REPLACE.value}
    if record is not None:
        properties = {**wanted.properties, **properties_with(record, wanted)}
        wanted = wanted.model_copy(update={"properties": properties})
        summary[RECORD] = json.dumps(record)
    commit_snapshot(table, wanted, added=added, gone=gone, summary=summary)


def expire(table: Table, storage: Storage, retention: timedelta) -> None:
    """Expires old snapshots, and all but the newest 1,000, with the files that describe them.

    Each batch adds a snapshot, and each commit reads and writes the list of snapshots.
    """
    _keep_record(table)
    while True:
        snapshots = table.refresh().snapshots()
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
            # A batch was committed in between.
            continue
        # A commit in progress can only refer to files that describe the newest snapshot.
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
    """Returns the files that attempts wrote to the table's location, and that are older."""
    written_before = datetime.now(UTC) - older_than
    copied, records = kept_files(storage, older_than)
    return records + [
        path
        for path, written_at in storage.list(FOLDER)
        if (WRITTEN.fullmatch(path) or COMPACTED.fullmatch(path))
        and written_at < written_before
        and path not in copied
    ]


def of_dead_attempts(client: Client, paths: Iterable[str]) -> list[str]:
    """Returns the files whose attempts can no longer publish: their epoch is not the newest."""
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
    """Returns the epoch of the last claim, the only one that can publish; None if it has ended."""
    try:
        info = client.batch_info(batch_id)
    except BatchNotOpen:
        return None
    lease = client.lease_info(info.queue, info.consumer)
    if lease is None or lease.batch_id != batch_id or lease.owner is None:
        return None
    return lease.epoch
