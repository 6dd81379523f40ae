"""Publishes a batch's files in an object store, by a manifest that only one attempt can create.

    batch_id=<id>/epoch-<epoch>.<attempt>/part-….parquet   what an attempt has written
    _pgque/batches/<id>/<n>.json                           manifest n: the files of a publication

The rows of a batch are those that its manifest with the highest number lists. An attempt publishes
by the steps of `publication.py`. The state that it reads is the highest number n. It replaces that
by creating manifest n+1. The store refuses this if there is an object of that name, because the
request has a condition (`If-None-Match: *`, or what the store has for it). Manifests are not
removed, so a number stays taken, and only the first attempt that read n creates n+1. Everything
that is published changes in this one step.

Files that were never published, or were replaced, are listed by no manifest that counts. An attempt
that published removes those of lower epochs: their attempts are stale, and what they read is not
the newest state any more. Others stay until `sweep`.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from ...client import Batch, BatchNotOpen, InvalidArgument, LeaseLost
from .data_files import DataFile, write_files
from .file_reader import ListedFile, read_files
from .lineage import MARKER
from .publication import Attempt, check_claim, publish
from .storage import Storage, StorageFailed, needing_extra

BATCH_ID = "batch_id"
_MANIFESTS = "_pgque/batches"
_NUMBER = re.compile(rf"(?:.*/)?{_MANIFESTS}/(\d+)/(\d+)\.json")
_WRITTEN = re.compile(r"epoch-(\d+)\.(\w+)")
# Files of this table and of the tables of replays in it, but not of other tables inside it.
_OWN = re.compile(r"((?!batch_id=)[^/=]+=[^/]*/)?batch_id=\d+/epoch-\d+\.\w+/[^/]+")
# Manifests are small, so reading them is waiting.
_READERS = 16


@dataclass(frozen=True)
class StoredFile:
    """A file of a published batch.

    Args:
        path: relative to the location.
        rows: how many rows it has.
        size: in bytes.
    """

    path: str
    rows: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """What is published of a batch.

    Args:
        batch_id: the batch.
        queue: of the batch.
        consumer: of the batch.
        epoch: of the claim.
        attempt: the random id of the attempt.
        schema: the columns, as Spark writes them in JSON.
        files: the files with the rows.
    """

    batch_id: int
    queue: str
    consumer: str
    epoch: int
    attempt: str
    schema: dict[str, Any]
    files: tuple[StoredFile, ...]

    @classmethod
    def read(cls, text: bytes) -> "Manifest":
        """Reads the object."""
        found = json.loads(text)
        return cls(**{**found, "files": tuple(StoredFile(**file) for file in found["files"])})

    def write(self) -> bytes:
        """Returns the object."""
        return json.dumps(asdict(self), indent=1).encode()


class ObjectStore:
    """A location in an object store."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._store = storage.store()

    def lineages(self) -> set[str]:
        """Returns the lineages of the marks in the location."""
        return {path.split("/")[-2] for path, _ in self._list(MARKER)}

    def has_batches(self) -> bool:
        """Says whether the location contains batches."""
        return any(name.startswith("batch_id=") for name in self._folders()) or any(
            True for _ in self._list(_MANIFESTS)
        )

    def mark(self, lineage: str, note: str) -> None:
        """Marks the location with a lineage, beside any mark that it has already."""
        with _obstore(self._storage, "cannot be written") as obstore:
            obstore.put(self._store, f"{MARKER}/{lineage}/lineage.json", note.encode())

    def publish(self, claim: Batch, frame: DataFrame) -> str:
        """Stores a batch in place of what earlier attempts stored; returns the rows' folder."""
        epoch = claim.lease.epoch
        output = ManifestOutput(
            self._storage, claim, Attempt(epoch, uuid.uuid4().hex), frame.schema
        )
        check_claim(claim, output.published(output.read()))
        try:
            output.files = write_files(frame, self._storage, output.folder)
            publish(claim, output)
        except (LeaseLost, BatchNotOpen):
            # After other errors, the manifest may have been created although its answer was lost.
            with suppress(StorageFailed):
                self._storage.remove(path for path, _ in self._list(output.folder))
            raise
        with suppress(StorageFailed):
            self._storage.remove(
                path
                for path, _ in self._list(f"batch_id={claim.batch_id}")
                if (written := _WRITTEN.search(path)) and int(written[1]) < epoch
            )
        return f"{self._storage.location}/{output.folder}"

    def files(self) -> list[tuple[int, str]]:
        """Returns the paths of the files with the rows, each with its batch."""
        return [
            (manifest.batch_id, f"{folder}{file.path}")
            for folder, manifest in self._manifests(self._newest())
            for file in manifest.files
        ]

    def read(self, spark: SparkSession, is_wanted: Callable[[int], bool]) -> DataFrame:
        """Returns the rows of the batches that are wanted, with the columns of the newest one."""
        newest = self._newest()
        if not newest:
            raise InvalidArgument(f"{self._storage.location} holds no batches", "Store one first.")
        last = max(newest, key=lambda path: newest[path].batch_id)
        ((_, latest),) = self._manifests({last: newest[last]})
        wanted = {path: each for path, each in newest.items() if is_wanted(each.batch_id)}
        files = [
            ListedFile(
                f"{folder}{file.path}",
                file.size,
                {**_values(folder), BATCH_ID: manifest.batch_id},
            )
            for folder, manifest in self._manifests(wanted)
            for file in manifest.files
        ]
        schema = StructType.fromJson(latest.schema)
        for name in _values(newest[last].folder):
            schema = schema.add(name, StringType())
        return read_files(spark, self._storage, files, schema.add(BATCH_ID, LongType()))

    def _newest(self) -> dict[str, "_Newest"]:
        """Returns the paths of the manifests that count.

        Tables of replays are folders in the location.
        """
        inside = [name for name in self._folders() if re.fullmatch(r"(?!batch_id=)[^=]+=.*", name)]
        newest: dict[tuple[str, int], int] = {}
        for folder in ("", *(f"{name}/" for name in inside)):
            for path, _ in self._list(f"{folder}{_MANIFESTS}"):
                if found := _NUMBER.fullmatch(path):
                    batch, number = (folder, int(found[1])), int(found[2])
                    newest[batch] = max(number, newest.get(batch, 0))
        return {
            f"{folder}{_path(batch_id, number)}": _Newest(folder, batch_id)
            for (folder, batch_id), number in sorted(newest.items())
        }

    def _manifests(self, newest: Mapping[str, "_Newest"]) -> list[tuple[str, Manifest]]:
        """Reads manifests; returns each with the folder that its paths are relative to."""
        with ThreadPoolExecutor(_READERS) as pool:
            texts = pool.map(self._get, newest)
            return [
                (each.folder, Manifest.read(text))
                for each, text in zip(newest.values(), texts, strict=True)
            ]

    def sweep(self, older_than: timedelta) -> int:
        """Removes files that no manifest lists and that are older; returns how many."""
        begun_before = datetime.now(UTC) - older_than
        found = [path for path, at in self._list() if _OWN.fullmatch(path) and at < begun_before]
        # Read afterwards: what is published since the files were listed is referenced.
        listed = {path for _, path in self.files()}
        unused = [path for path in found if path not in listed]
        self._storage.remove(unused)
        return len(unused)

    def _get(self, path: str) -> bytes:
        with _obstore(self._storage, "cannot be read") as obstore:
            return bytes(obstore.get(self._store, path).bytes())

    def _folders(self) -> list[str]:
        with _obstore(self._storage, "cannot be read") as obstore:
            found = obstore.list_with_delimiter(self._store)["common_prefixes"]
        return [path.rstrip("/").rpartition("/")[2] for path in found]

    def _list(self, folder: str | None = None) -> Iterator[tuple[str, datetime]]:
        return self._storage.list(folder, self._store)


@dataclass(frozen=True)
class _Newest:
    folder: str
    batch_id: int


def _values(folder: str) -> dict[str, object]:
    """Returns the column that the name of a folder gives to the rows in it."""
    name, is_column, value = folder.rstrip("/").partition("=")
    return {name: value} if is_column else {}


class ManifestOutput:
    """The files that an attempt has written.

    Args:
        storage: the location.
        claim: the claim of the batch.
        attempt: the attempt.
        schema: of the rows.
    """

    def __init__(
        self, storage: Storage, claim: Batch, attempt: Attempt, schema: StructType
    ) -> None:
        self.attempt = attempt
        self.folder = f"batch_id={claim.batch_id}/epoch-{attempt.epoch}.{attempt.id}"
        self.files: Iterable[DataFile] = ()
        self._storage = storage
        self._store = storage.store()
        self._claim = claim
        self._schema = schema

    def read(self) -> "State":
        """Returns the highest number, and the attempt of its manifest."""
        folder = f"{_MANIFESTS}/{self._claim.batch_id}"
        paths = (path for path, _ in self._storage.list(folder, self._store))
        numbers = [int(found[2]) for path in paths if (found := _NUMBER.fullmatch(path))]
        if not numbers:
            return State(0, None)
        with _obstore(self._storage, "cannot be read") as obstore:
            path = _path(self._claim.batch_id, max(numbers))
            manifest = Manifest.read(bytes(obstore.get(self._store, path).bytes()))
        return State(max(numbers), Attempt(manifest.epoch, manifest.attempt))

    def published(self, state: "State") -> Attempt | None:
        """Returns the attempt whose files the manifest lists."""
        return state.attempt

    def replace(self, state: "State") -> bool:
        """Creates the manifest of the next number, unless there is one."""
        self._check_files()
        with _obstore(self._storage, "cannot be written") as obstore:
            path = _path(self._claim.batch_id, state.number + 1)
            try:
                obstore.put(self._store, path, self._manifest().write(), mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def _manifest(self) -> Manifest:
        return Manifest(
            self._claim.batch_id,
            self._claim.queue,
            self._claim.consumer,
            self.attempt.epoch,
            self.attempt.id,
            self._schema.jsonValue(),
            tuple(StoredFile(file.path, file.rows, file.size) for file in self.files),
        )

    def _check_files(self) -> None:
        """Refuses to list files that were swept while the attempt was stopped."""
        there = {path for path, _ in self._storage.list(self.folder, self._store)}
        if missing := [file.path for file in self.files if file.path not in there]:
            # If a later attempt swept them, this raises the error that says so.
            self._claim.renew()
            raise StorageFailed(
                f"{self._storage.location} has lost {missing[0]} of batch {self._claim.batch_id} "
                "before it was published",
                "Run the batch again. Sweep only files that are older than an attempt takes.",
            )


@dataclass(frozen=True)
class State:
    """The newest manifest of a batch.

    Args:
        number: of the manifest, or 0.
        attempt: whose files it lists.
    """

    number: int
    attempt: Attempt | None


@contextmanager
def _obstore(storage: Storage, what: str) -> Iterator[Any]:
    """Gives the module, and raises its errors as those of the location."""
    with needing_extra("object-store"):
        import obstore
    with storage.errors(what):
        yield obstore


def _path(batch_id: int, number: int) -> str:
    return f"{_MANIFESTS}/{batch_id}/{number}.json"
