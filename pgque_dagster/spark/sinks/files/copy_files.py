"""The complete parts of a copy: their files, and records of them that later attempts trust.

A record is written after the files that it names. An incomplete record cannot be parsed, and is
ignored. A record has groups of parts that were read together; a group whose files are missing does
not count. A commit may publish the files, so only maintenance removes them (`kept_files`).
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq

from .data_files import DataFile
from .file_reader import ListedFile
from .storage import Storage, StorageFailed

_FOLDER, _READERS = "_pgque", 16
_RECORD = re.compile(rf"{_FOLDER}/(copy-[0-9a-f]{{32}})(?:-[0-9a-f]{{32}})?\.json")


@dataclass
class CopyFiles:
    """A copy in parts, according to its records.

    Attributes:
        begun: what was recorded when it began; empty if there is no such record.
        groups: the numbers of parts that were read together, with their files and columns.
        named: the files that they name, also of groups that do not count.
    """

    storage: Storage
    name: str = field(default_factory=lambda: f"copy-{uuid.uuid4().hex}")
    begun: dict[str, Any] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    records: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    @property
    def files(self) -> list[ListedFile]:
        """The files with the rows of the parts."""
        return [ListedFile(x["path"], x["size"]) for each in self.groups for x in each["files"]]

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(file["rows"] for each in self.groups for file in each["files"])

    @property
    def size(self) -> int:
        """How many bytes the files have."""
        return sum(file.size for file in self.files)

    @staticmethod
    def all(storage: Storage) -> "list[CopyFiles]":
        """Returns the copies that have records.

        Raises:
            StorageFailed: if the storage cannot be read.
        """
        found: dict[str, CopyFiles] = {}
        there: dict[str, set[str]] = {}
        for path in sorted(path for path, _ in storage.list(_FOLDER)):
            if match := _RECORD.fullmatch(path):
                copy = found.setdefault(match[1], CopyFiles(storage, match[1]))
                copy.records.append(path)
                with suppress(ValueError):
                    record = json.loads(storage.read(path) or b"")
                    if "groups" not in record:
                        copy.begun = record
                    for group in record.get("groups", ()):
                        copy.named.update(file["path"] for file in group["files"])
                        if not _lost(storage, group, there):
                            copy._take(group)  # noqa: SLF001 -- it is one of this class
        return list(found.values())

    def begin(self, **begun: Any) -> None:
        """Records that the copy begins."""
        self.begun = begun
        self._write(self._first, self.begun)

    def add(self, parts: Sequence[int], files: Iterable[DataFile], columns: str) -> None:
        """Records parts that were read together, with their files, which are complete."""
        listed = [{"path": x.path, "size": x.size, "rows": x.rows} for x in files]
        group = {"parts": list(parts), "files": listed, "columns": columns}
        self._record([group])
        self._take(group)

    def unite(self) -> None:
        """Makes one new record of all parts: it is read faster, and shows that the copy continues.

        The first record is not rewritten, because a crash meanwhile would lose the copy.
        """
        earlier = [path for path in self.records if path != self._first]
        self._record(self.groups)
        with suppress(StorageFailed):
            self.storage.remove(earlier)

    def data_files(self) -> list[DataFile]:
        """Reads what a commit needs to know about the files.

        Raises:
            StorageFailed: if one is gone or cannot be read.
        """

        def read(file: ListedFile) -> DataFile:
            with self.storage.errors("cannot be read"):
                metadata = pq.read_metadata(self.storage.source(file.path))
            return DataFile.of_metadata(file.path, file.size, metadata)

        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(read, self.files))

    def check_files(self) -> None:
        """Raises `StorageFailed` if files of some parts are gone."""
        there: dict[str, set[str]] = {}
        lost = [path for group in self.groups for path in _lost(self.storage, group, there)]
        if lost:
            raise StorageFailed(
                f"{len(lost)} files of the copy in parts are gone, such as {lost[0]}",
                "The next attempt reads the rows of these files again. Do not delete files of a "
                "copy that is in progress.",
                passing=False,
            )

    @property
    def _first(self) -> str:
        return f"{_FOLDER}/{self.name}.json"

    def _record(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._write(f"{_FOLDER}/{self.name}-{uuid.uuid4().hex}.json", {"groups": groups})

    def _take(self, group: dict[str, Any]) -> None:
        """Adds a group. Parts that two attempts have read count once."""
        if self.done.isdisjoint(group["parts"]):
            self.done.update(group["parts"])
            self.groups.append(group)

    def _write(self, path: str, record: Mapping[str, Any]) -> None:
        with self.storage.create(path) as file:
            file.write(json.dumps(record).encode())
        self.records.append(path)


def kept_files(storage: Storage, retention: timedelta) -> tuple[set[str], list[str]]:
    """Returns the files of all copies, and the records of copies that no run has continued lately.

    Without a record, no attempt publishes the files, so later maintenance removes those that the
    table does not have.

    Raises:
        StorageFailed: if the storage cannot be read.
    """
    since = datetime.now(UTC) - retention
    lately = {path for path, written_at in storage.list(_FOLDER) if written_at >= since}
    kept, records = set[str](), list[str]()
    for copy in CopyFiles.all(storage):
        kept |= copy.named
        if lately.isdisjoint(copy.records):
            records += copy.records
    return kept, records


def _lost(storage: Storage, group: Mapping[str, Any], there: dict[str, set[str]]) -> list[str]:
    """Returns the files of a group that do not exist. Folders are listed once, in `there`."""
    paths = [file["path"] for file in group["files"]]
    for folder in {path.rpartition("/")[0] for path in paths} - there.keys():
        there[folder] = {path for path, _ in storage.list(folder)}
    return [path for path in paths if path not in there[path.rpartition("/")[0]]]
