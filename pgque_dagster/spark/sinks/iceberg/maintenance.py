"""Removes files that attempts left beside an Iceberg table and that nobody can publish any more.

The name of a file has its batch and the epoch of its claim. A file is kept if the batch is open and
nobody claimed it later: its attempt may still work, or be stopped, and publish it. It is kept if a
snapshot refers to it that the table still has. What remains are files of attempts that were killed
or lost their lease, and of attempts that were replaced and whose snapshots expired. Windows of time
and compactions have no lease, so only their age protects the files of an attempt at one.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from ....client import BatchNotOpen, Client
from ..files.storage import Storage
from ..table_output import FOLDER
from ..tables import WRITTEN
from .compaction import COMPACTED


def expire(table: Table, retention: timedelta) -> None:
    """Forgets old snapshots. Each batch adds one, and each commit reads the list of them."""
    before = datetime.now(UTC) - retention
    while any(each.timestamp_ms < before.timestamp() * 1000 for each in table.snapshots()[:-1]):
        try:
            table.maintenance.expire_snapshots().older_than(before).commit()
        except CommitFailedException:
            # A batch was committed meanwhile.
            table.refresh()
        else:
            return


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
    held: dict[int, int | None] = {}
    dead = []
    for path in paths:
        found = WRITTEN.fullmatch(path)
        if found is None:
            dead.append(path)
            continue
        batch_id, epoch = int(found[1]), int(found[2])
        if batch_id not in held:
            held[batch_id] = _held_epoch(client, batch_id)
        newest = held[batch_id]
        if newest is None or epoch < newest:
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


def _held_epoch(client: Client, batch_id: int) -> int | None:
    """Returns the epoch whose holder can still publish, as long as nobody claims the batch."""
    try:
        info = client.batch_info(batch_id)
    except BatchNotOpen:
        return None
    lease = client.lease_info(info.queue, info.consumer)
    if lease is None or lease.batch_id != batch_id or lease.owner is None:
        return None
    return lease.epoch
