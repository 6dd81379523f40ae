"""The log of a Delta table: the files of a version, and commits that Delta's library cannot make.

The library reads and writes the log, except for deletion vectors: it applies them, but neither
shows nor writes them.
"""

import json
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from ....client.errors import InvalidArgument
from ..files.data_files import DataFile
from ..files.positions import SearchedFile
from ..files.storage import Storage, StorageFailed
from .schema import delta_statistics
from .vectors import DeletionVector

VECTORS_ON = "delta.enableDeletionVectors"
VECTORS = "deletionVectors"
_NTZ = "timestampNtz"
_LOG = "_delta_log"
_INTERVAL, _DEFAULT_INTERVAL = "delta.checkpointInterval", "100"
_READERS = 16
_BOUNDED = frozenset(("byte", "short", "integer", "long", "string"))
_CLEANUP = "delta.enableExpiredLogCleanup"
Action = dict[str, Any]
_ACTIONS = ("add", "remove")
# What checkpoints of version 2 have: their actions are in additional files.
_SIDECAR = "sidecar"
# A checkpoint of one file, of several parts, or of version 2.
_CHECKPOINT = re.compile(
    rf"{_LOG}/(?P<version>\d{{20}})\.checkpoint"
    r"(?:\.\d{10}\.(?P<parts>\d{10})|\.(?P<id>[0-9a-f-]{36}))?\.(?:parquet|json)"
)
_Removed = dict[str, int]


@dataclass(frozen=True)
class StoredFile:
    """A data file in a version of a table.

    Attributes:
        action: its entry in the log.
        vector: which of its rows are deleted, if any.
    """

    action: Action
    vector: DeletionVector | None

    @property
    def path(self) -> str:
        """Its path, relative to the table."""
        return unquote(self.action["path"])

    @property
    def deleted(self) -> int:
        """How many of its rows are deleted."""
        return int(self.vector.action["cardinality"]) if self.vector else 0

    def searched(self, columns: Iterable[str]) -> SearchedFile:
        """Returns the file with its statistics of some columns of integers and texts."""
        bounds: dict[str, tuple[Any, Any]] = {}
        statistics = self._statistics()
        low, high = (
            msgspec.json.decode(statistics.get(name, b"{}"), type=dict[str, msgspec.Raw])
            for name in ("minValues", "maxValues")
        )
        for name in columns:
            found = (msgspec.json.decode(each.get(name, b"null")) for each in (low, high))
            bounds[name] = next(found), next(found)
        return SearchedFile(self.path, self.action["size"], self.vector, bounds)

    def rows(self, storage: Storage) -> int:
        """Returns how many rows the file has, including deleted ones."""
        found = self._statistics().get("numRecords")
        if found is None:
            with storage.errors("cannot be read"):
                return int(pq.read_metadata(storage.source(self.path)).num_rows)
        return int(msgspec.json.decode(found))

    def added(self, vector: DeletionVector, rows: int) -> Action:
        """Returns the action that adds it again with another deletion vector."""
        statistics = {
            **self._statistics(),
            "numRecords": msgspec.Raw(str(rows).encode()),
            # The bounds may come from deleted rows.
            "tightBounds": msgspec.Raw(b"false"),
        }
        changed = {
            "dataChange": True,
            "deletionVector": vector.action,
            "stats": msgspec.json.encode(statistics).decode(),
        }
        return {"add": {**self.action, **changed}}

    def removed(self) -> Action:
        """Returns the action that removes it."""
        kept = ("path", "partitionValues", "size", "deletionVector", "tags")
        found = {name: self.action[name] for name in kept if self.action.get(name) is not None}
        more = {"deletionTimestamp": now(), "dataChange": True, "extendedFileMetadata": True}
        return {"remove": {**found, **more}}

    def _statistics(self) -> dict[str, msgspec.Raw]:
        # Raw, because numbers may have more digits than a float has.
        return msgspec.json.decode(self.action.get("stats") or "{}", type=dict[str, msgspec.Raw])


def now() -> int:
    """Returns the time in the log's form, in milliseconds."""
    return int(time.time() * 1000)


def uses_vectors(table: DeltaTable) -> bool:
    """Returns whether a table's rows are to be deleted by deletion vectors."""
    is_on = table.metadata().configuration.get(VECTORS_ON, "false").lower() == "true"
    return is_on and has_vectors(table)


def has_vectors(table: DeltaTable) -> bool:
    """Returns whether files of a table may have deletion vectors."""
    return VECTORS in (table.protocol().reader_features or ())


def stored_files(storage: Storage, version: int) -> list[StoredFile]:
    """Returns the data files of a version.

    Raises:
        InvalidArgument: if the log needs a reader with more features.
        StorageFailed: if it cannot be read.
    """
    live = _replayed(storage, version)[0]
    return [StoredFile(each, _vector_of(each)) for each in live.values()]


def vector_files(storage: Storage, version: int, since: int) -> set[str]:
    """Returns the files of deletion vectors that are in a version, or were in one since a time.

    Args:
        storage: the table.
        version: the version.
        since: the time in the log's form.

    Raises:
        As for `stored_files`.
    """
    live, removed = _replayed(storage, version)
    vectors = filter(None, map(_vector_of, live.values()))
    kept = {path for path, at in removed.items() if at >= since}
    return kept | {vector.path for vector in vectors if vector.path}


def _replayed(storage: Storage, version: int) -> tuple[dict[tuple[str, str], Action], _Removed]:
    """Returns the files of a version, and when files of vectors were last removed from a file."""
    first, actions = _from_checkpoint(storage, version)
    live: dict[tuple[str, str], Action] = {}
    removed: _Removed = {}

    def apply(action: Action) -> None:
        if gone := action.get("remove"):
            live.pop(_key(gone), None)
            vector = _vector_of(gone)
            if vector and vector.path:
                at = gone.get("deletionTimestamp") or 0
                removed[vector.path] = max(at, removed.get(vector.path, 0))
        if there := action.get("add"):
            live[_key(there)] = there

    for action in actions:
        apply(action)
    paths = [f"{_LOG}/{each:020}.json" for each in range(first, version + 1)]
    with ThreadPoolExecutor(_READERS) as pool:
        for path, text in zip(paths, pool.map(storage.read, paths), strict=True):
            if text is None:
                raise StorageFailed(
                    f"{storage.location} has no file {path}, which version {version} needs",
                    "Read a newer version, or restore the file.",
                )
            for line in text.splitlines():
                if b'"add"' in line or b'"remove"' in line:
                    apply(json.loads(line))
    return live, removed


def commit(table: DeltaTable, storage: Storage, actions: Sequence[Action]) -> None:
    """Commits the version that follows a version of a table.

    The first action is the commit's information.

    Raises:
        CommitFailedError: if there is such a version.
        StorageFailed: if it cannot be written.
    """
    version = table.version() + 1
    if not write_version(storage, version, actions):
        raise CommitFailedError(f"there is a version {version}")
    properties = table.metadata().configuration
    interval = properties.get(_INTERVAL, _DEFAULT_INTERVAL)
    if version % max(1, int(interval)) == 0:
        # The commit is done. Without a checkpoint, reading takes longer until the next one.
        with suppress(DeltaError, OSError):
            newest = DeltaTable(storage.location, storage_options=storage.delta_options())
            newest.create_checkpoint()
            if properties.get(_CLEANUP, "true") == "true":
                newest.cleanup_metadata()


def create(storage: Storage, fields: Sequence[Action], properties: dict[str, str]) -> bool:
    """Creates a table that has deletion vectors. Returns False if there is a table.

    Delta's library would demand that readers know the type variant, too.
    """
    kept = metadata(fields, {**properties, VECTORS_ON: "true"}, str(uuid.uuid4()), now())
    schema = kept["metaData"]["schemaString"]
    features = [VECTORS, *([_NTZ] if '"timestamp_ntz"' in schema else [])]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    actions = [information("CREATE TABLE"), {"protocol": protocol}, kept]
    return write_version(storage, 0, actions)


def metadata(
    fields: Sequence[Action], properties: Mapping[str, str], id_: str, created: int, **more: Any
) -> Action:
    """Returns the action that gives a table columns and properties."""
    return {
        "metaData": {
            "id": id_,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": msgspec.json.encode(
                {"type": "struct", "fields": list(fields)}
            ).decode(),
            "partitionColumns": [],
            "configuration": properties,
            "createdTime": created,
            **more,
        }
    }


def metadata_with(
    table: DeltaTable, fields: Sequence[Action], properties: Mapping[str, str] | None = None
) -> Action:
    """Returns the action that changes a table's columns or properties, and keeps the rest."""
    now_ = table.metadata()
    named = {"name": now_.name, "description": now_.description}
    properties = now_.configuration if properties is None else properties
    return metadata(fields, properties, str(now_.id), now_.created_time, **named)


def write_version(storage: Storage, version: int, actions: Iterable[Action]) -> bool:
    """Writes the actions of a version. Returns False if there is such a version."""
    # Without escapes, because Delta's library misreads escapes of the last characters.
    text = b"".join(msgspec.json.encode(action) + b"\n" for action in actions)
    return storage.create_new(f"{_LOG}/{version:020}.json", text)


def information(operation: str, **more: Any) -> Action:
    """Returns the information of a commit."""
    return {
        "commitInfo": {
            "timestamp": now(),
            "operation": operation,
            "operationParameters": {},
            "engineInfo": "pgque-dagster",
            **more,
        }
    }


def added(file: DataFile) -> Action:
    """Returns the action that adds a new file."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": now(),
            "dataChange": True,
            "stats": delta_statistics(file),
        }
    }


def bounded_columns(fields: Iterable[Action], key: Iterable[str]) -> list[str]:
    """Returns the key columns whose statistics in the log are compared."""
    kinds = {field["name"]: field["type"] for field in fields}
    return [name for name in key if kinds[name] in _BOUNDED]


def _key(action: Action) -> tuple[str, str]:
    vector = _vector_of(action)
    return action["path"], vector.id if vector else ""


def _vector_of(action: Action) -> DeletionVector | None:
    found = action.get("deletionVector")
    return DeletionVector(found) if found else None


def _from_checkpoint(storage: Storage, version: int) -> tuple[int, Iterator[Action]]:
    """Returns the first version after the newest checkpoint, and the actions of the checkpoint."""
    hint = 0
    with suppress(ValueError, KeyError, TypeError):
        hint = int(json.loads(storage.read(f"{_LOG}/_last_checkpoint") or "")["version"])
    # The hint, which may be old or missing, only shortens the search.
    for start in sorted({0, min(hint, version)}, reverse=True):
        found: dict[tuple[int, int], list[str]] = defaultdict(list)
        for path, _ in storage.list(_LOG, after=f"{_LOG}/{start:020}"):
            match = _CHECKPOINT.fullmatch(path)
            if match and int(match["version"]) <= version:
                parts = int(match["parts"] or not match["id"])
                found[int(match["version"]), parts].append(path)
        if complete := [key for key, paths in found.items() if len(paths) >= key[1]]:
            newest, parts = max(complete)
            if not parts:
                raise _of_version_2(storage)
            return newest + 1, _read_checkpoint(storage, found[newest, parts])
    return 0, iter(())


def _read_checkpoint(storage: Storage, paths: Iterable[str]) -> Iterator[Action]:
    for path in paths:
        with storage.errors("cannot be read"):
            file = pq.ParquetFile(storage.source(path))
            for batch in file.iter_batches(columns=[*_ACTIONS, _SIDECAR]):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    for each in filter(None, column.to_pylist()):
                        if name == _SIDECAR:
                            raise _of_version_2(storage)
                        yield {name: _plain(each)}


def _of_version_2(storage: Storage) -> InvalidArgument:
    return InvalidArgument(
        f"{storage.location} has checkpoints of version 2, which are not supported here",
        "Drop the table's feature v2Checkpoint.",
    )


def _plain(row: Action) -> Action:
    """Returns an action of a checkpoint as JSON has it."""
    found = {name: value for name, value in row.items() if value is not None}
    for name in ("partitionValues", "tags"):
        if name in found:
            found[name] = dict(found[name])
    # Statistics in other forms are left out.
    return {name: value for name, value in found.items() if not name.endswith("_parsed")}
