"""Replaces rows of a Delta table by key without rewriting files: by deletion vectors.

Tasks have written the new rows, and find the rows that they replace (`files/positions.py`). One
commit adds the new files, and gives each file with replaced rows a vector that includes them.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    """Returns the files of a version, and the same files in the form to search for keys."""
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
    """Commits rows in place of those with some keys, if a version is still the newest.

    The files of keys may have more columns. `actions` are the first ones of the commit.

    Returns:
        By how many rows the table grows.

    Raises:
        CommitFailedError: if the version is not the newest.
        StorageFailed: if files cannot be read or written.
    """
    files, searched = searched_files(storage, table, key)
    found = find_positions(spark, storage, searched, keys, key)
    touched = [file for file in files if file.path in found]
    removed = [file.removed() for file in touched]
    _commit(storage, table, [*actions, *removed, *map(added, rows)], touched, found)
    return sum(file.rows for file in rows) - sum(map(len, found.values()))


def replace_files(
    storage: Storage,
    table: DeltaTable,
    files: Sequence[DataFile],
    deleted: Mapping[str, BitMap64],
    rows: Sequence[DataFile],
    actions: Sequence[Action],
) -> None:
    """Commits files in place of all that a table has.

    Args:
        storage: the table.
        table: the version that must still be the newest.
        files: files that another attempt may have published in it.
        deleted: the positions of their deleted rows, by path.
        rows: additional files.
        actions: the first actions of the commit.

    Raises:
        CommitFailedError: if the version is not the newest.
        StorageFailed: if files cannot be read or written.
    """
    there = stored_files(storage, table.version())
    new = {file.path: StoredFile(added(file)["add"], None) for file in files}
    touched = [new.pop(path) for path in deleted]
    # A commit may not both remove and add a file, unless its vector differs.
    stay = {file.path for file in there if not file.vector} & new.keys()
    changed = [
        *(file.removed() for file in there if file.path not in stay),
        *({"add": file.action} for path, file in new.items() if path not in stay),
    ]
    _commit(storage, table, [*actions, *changed, *map(added, rows)], touched, deleted)


def _commit(
    storage: Storage,
    table: DeltaTable,
    actions: list[Action],
    touched: Sequence[StoredFile],
    deleted: Mapping[str, BitMap64],
) -> None:
    """Commits actions, and adds the touched files with more rows deleted."""
    sizes = {file.path: (file, file.rows(storage)) for file in touched}

    def united() -> Iterator[tuple[str, BitMap64]]:
        for path, (file, size) in sizes.items():
            known = file.vector.positions(storage) if file.vector else BitMap64()
            if len(gone := deleted[path] | known) < size:
                yield path, gone

    vectors, unpublished = united(), None
    if first := next(vectors, None):
        for path, vector in write_vectors(storage, chain([first], vectors)):
            file, size = sizes[path]
            actions.append(file.added(vector, size))
            unpublished = vector.path
    try:
        commit(table, storage, actions)
    except CommitFailedError:
        if unpublished:
            with suppress(StorageFailed):
                storage.remove([unpublished])
        raise
