"""Compacts files of a Delta table, by commits that change no row, and keeps removed files."""

import math
import re
from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyroaring import BitMap64

from ..compaction import CompactedTable, Copy, LiveFile, not_compacted
from ..files.data_files import DELTA_TYPES, check_columns
from ..files.storage import Storage
from .commit import KEPT_FEATURES, MAPPING
from .log import StoredFile, added, commit, information, stored_files
from .schema import spark_columns
from .vectors import write_vectors

_RETENTION, _DEFAULT_RETENTION = "delta.deletedFileRetentionDuration", timedelta(days=7)


class DeltaFiles(CompactedTable):
    """A table, with its name for errors, whose files are compacted."""

    conflict = CommitFailedError

    def __init__(self, table: DeltaTable, name: str, storage: Storage) -> None:
        columns = spark_columns(table)
        check_columns(columns, DELTA_TYPES, "Delta")
        super().__init__(storage, columns, pa.schema(table.schema().to_arrow()))
        self._table, self._name = table, name
        self._stored: dict[str, StoredFile] = {}

    def read(self) -> list[LiveFile]:
        """Loads the newest version of the table. Returns its files."""
        table, storage = self._table, self.storage
        table.update_incremental()
        metadata, features = table.metadata(), set(table.protocol().writer_features or ())
        unknown = sorted(features - set(KEPT_FEATURES.split()))
        if metadata.partition_columns or metadata.configuration.get(MAPPING, "none") != "none":
            unknown.append("partitions or column mapping")
        if unknown:
            raise not_compacted(self._name, ", ".join(unknown))
        self._stored = {file.path: file for file in stored_files(storage, table.version())}
        return [
            LiveFile(path, file.action["size"], file.vector, file.rows(storage), file.deleted)
            for path, file in self._stored.items()
        ]

    def replace(self, copies: Sequence[tuple[Copy, BitMap64]]) -> None:
        """Commits copies in place of files, if the version that was read is still the newest."""
        written = {copy.file.path: (copy.file, gone) for copy, gone in copies if copy.file}
        new = {path: added(file) for path, (file, _) in written.items()}
        deleted = {path: gone for path, (_, gone) in written.items() if gone}
        for path, vector in write_vectors(self.storage, deleted.items()) if deleted else ():
            new[path] = StoredFile(new[path]["add"], None).added(vector, written[path][0].rows)
        replaced = (self._stored[file.path] for copy, _ in copies for file in copy.files)
        actions = [*(file.removed() for file in replaced), *new.values()]
        for action in actions:
            for each in action.values():
                each["dataChange"] = False
        commit(self._table, self.storage, [information("OPTIMIZE"), *actions])


def keep_removed(table: DeltaTable, retention: timedelta) -> timedelta:
    """Makes the log name removed files for at least a retention. Returns how long they are kept.

    Checkpoints leave out files that were removed earlier, so that a vacuum would not know them.
    """
    text = table.metadata().configuration.get(_RETENTION, "")
    units = re.findall(r"(\d+) (week|day|hour|minute|second)", text.lower())
    known = sum((timedelta(**{f"{unit}s": int(count)}) for count, unit in units), timedelta())
    kept = max(known, retention)
    # For other forms that Spark reads, such as capital letters, Delta's library uses the default.
    is_read = re.fullmatch(r"interval( +\d+ +[a-z]+)+", text)
    if kept > (known if is_read else _DEFAULT_RETENTION):
        days = math.ceil(kept / timedelta(days=1))
        table.alter.set_table_properties({_RETENTION: f"interval {days} days"})
    return kept
