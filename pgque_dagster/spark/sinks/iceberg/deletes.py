"""Reads and writes the files in which an Iceberg table lists deleted rows by position.

A new file has the positions of one data file. It replaces earlier files about that data file,
unless they have many more positions. So a data file has few of them, and a position is written a
few times at most.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.typedef import Record
from pyiceberg.types import LongType
from pyroaring import BitMap64

from ..files.file_reader import ListedFile
from ..files.storage import Storage
from .snapshot import PATH_ID, referenced

_POSITION_ID = 2147483545
_COLUMNS = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, kind, number in (
            ("file_path", pa.string(), PATH_ID),
            ("pos", pa.int64(), _POSITION_ID),
        )
    ]
)
# How many files are read and written at once: each is small, and stores have high latency.
_AT_ONCE = 16
# An earlier file stays if it has more than this many times the positions of the new file.
_MUCH_LARGER = 2


@dataclass(frozen=True)
class ListedDeletes:
    """The deleted rows of a data file.

    Attributes:
        data_file: its path, as written in the files of deletes.
        paths: the files of deletes, relative to the table's location.
        more: more positions, as a serialized bitmap.
    """

    data_file: str
    paths: Sequence[str]
    more: bytes = b""

    def positions(self, storage: Storage) -> BitMap64:
        """Returns the positions of the deleted rows.

        Raises:
            StorageFailed: if one of the files is gone or cannot be read.
        """
        found = BitMap64.deserialize(self.more) if self.more else BitMap64()
        for path in self.paths:
            with storage.errors("cannot be read"):
                rows = pq.read_table(storage.source(path), columns=_COLUMNS.names)
            mine = rows.filter(pc.equal(rows.column("file_path"), self.data_file))
            found |= BitMap64(mine.column("pos").to_numpy())
        return found


def write_deletes(
    storage: Storage,
    root: str,
    folder: str,
    new: Mapping[str, BitMap64],
    tasks: Iterable[FileScanTask],
) -> tuple[list[Entry], set[str]]:
    """Writes the positions of rows that are deleted now.

    Args:
        storage: where the table is.
        root: the prefix of the paths of its files.
        folder: a folder that no other attempt uses.
        new: by the paths of data files, relative to the table's location, the positions of rows
            that were not deleted before.
        tasks: all data files of the table, with their files of deletes.

    Returns:
        The new files, and the paths of unneeded files: those that they replace, and data
        files without rows.

    Raises:
        StorageFailed: if a file cannot be read or written.
    """

    def write(task: FileScanTask) -> tuple[Entry | None, set[str]]:
        path, rows = task.file.file_path, task.file.record_count
        positions, replaced = new[path.removeprefix(root)], set[str]()

        def read(files: Iterable[Entry]) -> BitMap64:
            paths = [file.file_path.removeprefix(root) for file in files]
            return ListedDeletes(path, paths).positions(storage)

        # A file about several data files only has counts over all of them.
        if len(positions) + sum(file.record_count for file in task.delete_files) >= rows:
            positions = positions | read(task.delete_files)
            if len(positions) >= rows:
                return None, {path}
        for file in sorted(task.delete_files, key=lambda file: file.record_count):
            is_small = file.record_count <= _MUCH_LARGER * len(positions)
            if is_small and referenced(file) == path:
                positions = positions | read([file])
                replaced.add(file.file_path)
        return write_positions(storage, root, folder, path, positions, task.file.spec_id), replaced

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        touched = [task for task in tasks if task.file.file_path.removeprefix(root) in new]
        done = list(pool.map(write, touched))
    return [file for file, _ in done if file], {path for _, paths in done for path in paths}


def without(file: ListedFile, root: str, more: BitMap64) -> ListedFile:
    """Returns a file with more rows deleted."""
    known = file.deleted or ListedDeletes(root + file.path, ())
    assert isinstance(known, ListedDeletes)
    return ListedFile(file.path, file.size, replace(known, more=more.serialize()))


def unneeded(tasks: Sequence[FileScanTask], gone: Iterable[str]) -> set[str]:
    """Returns the files of deletes that are only about data files that are removed."""
    removed = set(gone)
    kept = [task for task in tasks if task.file.file_path not in removed]
    of_all, of_kept = (
        {file.file_path for task in group for file in task.delete_files} for group in (tasks, kept)
    )
    return of_all - of_kept


def write_positions(
    storage: Storage, root: str, folder: str, data_file: str, positions: BitMap64, spec_id: int
) -> Entry:
    """Writes the positions of deleted rows of a data file, as `write_deletes`."""
    path = f"{folder}/part-{uuid.uuid4().hex}.parquet"
    names = pa.repeat(pa.scalar(data_file), len(positions))
    sorted_ = np.frombuffer(positions.to_array(), dtype=np.uint64).astype(np.int64)
    rows = pa.Table.from_arrays([names, pa.array(sorted_)], schema=_COLUMNS)
    with storage.create(path) as output:
        pq.write_table(
            rows,
            output,
            store_schema=False,
            compression="zstd",
            use_dictionary=["file_path"],
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
        )
        size = output.tell()
    kind = LongType()
    bounds = [to_bytes(kind, x) for x in (positions.min(), positions.max())]
    low, high = ({PATH_ID: data_file.encode(), _POSITION_ID: bound} for bound in bounds)
    return Entry.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=root + path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=size,
        lower_bounds=low,
        upper_bounds=high,
        sort_order_id=None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
        column_sizes=None,
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        split_offsets=None,
    )
