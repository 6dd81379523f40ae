"""Replaces rows of a Delta table by key without rewriting files: by deletion vectors.

Tasks have written the new rows, and find the rows that they replace (`files/positions.py`). One
commit adds the new files, and gives each file with replaced rows a vector that has these, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from ..files.data_files import DataFile
from ..files.positions import SearchedFile, find_positions
from ..files.storage import Storage, StorageFailed
from .log import Action, StoredFile, added, bounded_columns, commit, stored_files
from .schema import stored_fields
from .vectors import write_vectors


def searched_files(
    storage: Storage, table: DeltaTable, key: Sequence[str]
) -> tuple[list[StoredFile], list[SearchedFile]]:
    """Returns the files of a version, and the same as files to search for keys."""
    files = stored_files(storage, table.version())
    columns = bounded_columns(stored_fields(table), key)
    return files, [file.searched(columns) for file in files]


def replace_rows(
    spark: SparkSession,
    storage: Storage,
    table: DeltaTable,
    key: Sequence[str],
    rows: Sequence[DataFile],
    keys: Sequence[DataFile],
    actions: Sequence[Action],
) -> int:
    """Commits rows in place of those with some keys.

    Args:
        spark: the session.
        storage: the table.
        table: the version that must still be the newest.
        key: the columns of the key.
        rows: the files of the new rows.
        keys: the files of the keys; they may have more columns.
        actions: the first actions of the commit.

    Returns:
        By how many rows the table grows.

    Raises:
        CommitFailedError: if the version is not the newest.
        StorageFailed: if files cannot be read or written.
    """
    files, searched = searched_files(storage, table, key)
    found = find_positions(spark, storage, searched, keys, key)
    touched = {file.path: file for file in files if file.path in found}
    sizes = {path: file.rows(storage) for path, file in touched.items()}
    changed = [file.removed() for file in touched.values()]

    def united() -> Iterator[tuple[str, BitMap64]]:
        for path, file in touched.items():
            deleted = found[path]
            if file.vector:
                deleted = deleted | file.vector.positions(storage)
            if len(deleted) < sizes[path]:
                yield path, deleted

    vectors, unpublished = united(), None
    if first := next(vectors, None):
        for path, vector in write_vectors(storage, chain([first], vectors)):
            changed.append(touched[path].added(vector, sizes[path]))
            unpublished = vector.path
    try:
        commit(table, storage, [*actions, *changed, *map(added, rows)])
    except CommitFailedError:
        if unpublished:
            with suppress(StorageFailed):
                storage.remove([unpublished])
        raise
    return sum(file.rows for file in rows) - sum(map(len, found.values()))
