"""Publishes a batch's files on a file system where renaming a directory is atomic.

A batch has the directory `batch_id=<id>/`, and each publication of it a number there, from 1:

    publication-<n>/epoch-<epoch>.<attempt>/    the rows; readers see them
    publication-<n>/_taken                      keeps the number taken when the rows are gone

Beside the table, where no pattern over the table's files looks, a batch has another directory,
`.<table>.pgque/batch_id=<id>/`:

    .writing-<epoch>.<attempt>/                 what an attempt is writing
    .trash-<random>/                            rows that were replaced, or were never published

An attempt publishes by the steps of `publication.py`. The state that it reads is the highest number
n. Then it replaces:

a. It renames the rows of publication n, if there are any, to `.trash-…`, out of the table.
b. It renames its directory `.writing-…` to `publication-<n+1>`, with the rows in it. The operating
   system refuses this if there is a directory of that name that is not empty.

A number that was taken stays taken, because its directory is never removed or empty. So step b
succeeds only for the first attempt that read n, as `publication.py` needs.
Step a changes only what was published when the attempt read the state, before its last renewal, so
a stale attempt cannot remove what a later one publishes. Whoever publishes n+1 has done step a for
n before. So readers see the rows of at most one publication, and never a part of one. They see none
for a moment between the steps, or until the next attempt if the process dies there; the batch is
not acked then.

Readers take the columns from any file. So the first publication records them before step a, in
`_pgque/schema/schema.json`, and those with other columns are refused there. Files are synced to
the disk before the steps, and names before the ack.

An attempt sweeps only what attempts of lower epochs wrote. Spark and Hadoop recreate a directory
that is removed while they write into it, so a swept attempt may end with a part of its files. It
finds that its lease is gone, or else that `_taken` is, before it publishes. What is swept is first
renamed to `.trash-<random>` in one step, so nobody can publish a directory that is half deleted.
"""

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....client import BatchNotOpen, ConnectionFailed, InvalidArgument, LeaseLost
from ....client.read_batch import ReadBatch
from ..publication import WriteAttempt, check_claim, publish
from .data_files import write_files
from .storage import Storage, StorageFailed, sync

# Spark warns of a root whose own name begins with an underscore, so that is its parent's.
MARKER = "_pgque/lineages"
_PUBLICATION = re.compile(r"publication-(\d+)")
_ROWS = re.compile(r"epoch-(\d+)\.(\w+)")
_WRITING = re.compile(r"\.writing-(\d+)\.\w+")
_TAKEN = "_taken"
_REFUSED = re.compile(
    "No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    "|Input/output error|Mkdirs failed to create [^ ]*"
)
_EXISTS = (errno.ENOTEMPTY, errno.EEXIST)
_SCHEMA = "_pgque/schema"
# Else Spark writes INT96, which readers take for nanoseconds since 1970: too few for old dates.
_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class Folders:
    """A location on a file system."""

    def __init__(self, location: Path) -> None:
        self._location = location

    def incarnations(self) -> set[str]:
        """Returns the incarnations of the marks in the location."""
        return {path.name for path in _entries(self._location / MARKER)}

    def has_batches(self) -> bool:
        """Says whether the location contains batches."""
        return any(path.name.startswith("batch_id=") for path in _entries(self._location))

    def mark(self, incarnation: str, note: str) -> None:
        """Marks the location with an incarnation, unless it has a mark already.

        Raises:
            InvalidArgument: if the location is inside another table, or another table inside it.
        """
        others = [path for path in self._location.parents if (path / MARKER).is_dir()]
        for path in _entries(self._location):
            if not path.name.startswith(("_", ".")):
                others += (found.parent.parent for found in path.rglob(MARKER))
        if others:
            raise InvalidArgument(
                f"one of {self._location} and {others[0]} is inside the other, so readers of the "
                "outer one would see the rows of both",
                "Write to another directory; for assets, use another base_dir or key.",
            )
        _create(self._location / MARKER, f"{incarnation}/lineage.json", note)

    def publish(self, claim: ReadBatch, frame: DataFrame) -> str:
        """Stores a batch in place of what earlier attempts stored; returns the rows' directory.

        Raises:
            OSError: if the file system does not take it.
        """
        epoch = claim.lease.epoch
        self._check_columns(frame)
        folder = self._location / f"batch_id={claim.batch_id}"
        folder.mkdir(parents=True, exist_ok=True)
        aside = self._beside() / folder.name
        output = FolderOutput(folder, aside, WriteAttempt(epoch, uuid.uuid4().hex))
        output.check = lambda: self._check_columns(frame, record=True)
        check_claim(claim, output.published(output.read()))
        _sweep(aside, epoch)
        try:
            output.begin()
            self._write(frame, output.writing / output.name)
            publish(claim, output)
            sync(folder, *folder.parents)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            raise
        except Exception as error:
            # If a later attempt swept the files, this raises the error that says so.
            with suppress(ConnectionFailed):
                claim.renew()
            # Spark's own error about it is a page long.
            if refused := _REFUSED.search(str(error)):
                raise OSError(refused[0]) from None
            raise
        finally:
            shutil.rmtree(output.writing, ignore_errors=True)
            with suppress(OSError):  # Not empty: another attempt works there.
                aside.rmdir()
        _sweep(aside, epoch)
        return str(folder / f"publication-{output.number}" / output.name)

    def _beside(self) -> Path:
        """Returns the directory for what readers of the table must not see.

        Raises:
            InvalidArgument: if nothing can be renamed from there into the table.
        """
        # A link may lead to another file system.
        table = self._location.resolve()
        if os.path.ismount(table):
            raise InvalidArgument(
                f"{table} is the root of a file system, so rows cannot be written beside the "
                "table and then be renamed into it",
                "Write to a directory in it.",
            )
        return table.parent / f".{table.name}.pgque"

    def _write(self, frame: DataFrame, rows: Path) -> None:
        # An older Spark has no such option for a single write.
        if frame.sparkSession.version < "4.2" and '"timestamp"' in frame.schema.json():
            rows.mkdir()
            write_files(frame, Storage.of(rows.parent), rows.name)
        else:
            frame.write.options(**_MICROSECONDS).parquet(str(rows))
        with ThreadPoolExecutor() as pool:
            list(pool.map(sync, (*rows.iterdir(), rows, rows.parent)))

    def _columns(self, spark: SparkSession) -> StructType | None:
        """Returns the columns of the table: as recorded, or those of its newest batch."""
        record = self._location / _SCHEMA / "schema.json"
        if record.exists():
            return StructType.fromJson(json.loads(record.read_text()))
        # Versions up to 0.3.0 made no record.
        rows = list(self._location.glob("batch_id=*/publication-*/epoch-*"))
        newest = max(rows, key=lambda path: int(path.parts[-3].partition("=")[2]), default=None)
        return spark.read.parquet(str(newest)).schema if newest else None

    def _check_columns(self, frame: DataFrame, *, record: bool = False) -> None:
        """Refuses columns that readers of the table would not see as they are."""
        columns, stored = frame.schema, self._columns(frame.sparkSession)
        if record and not (self._location / _SCHEMA).exists():
            _create(self._location / _SCHEMA, "schema.json", (stored or columns).json())
            stored = self._columns(frame.sparkSession)
        there, given = (
            {field.name: field.dataType.simpleString() for field in each.fields}
            for each in (stored or columns, columns)
        )
        differences = [
            f"{name} is {there.get(name, 'missing')} there, {given.get(name, 'missing')} here"
            for name in {**there, **given}
            if there.get(name) != given.get(name)
        ]
        if differences:
            raise InvalidArgument(
                f"Parquet table {self._location} has other columns than the DataFrame: "
                + "; ".join(differences),
                "Cast, rename or leave out columns; or write to another directory (for assets, "
                "another base_dir or key), or to a Delta table, which can get columns. If its rows "
                "are not needed, remove the directory, with its _pgque/schema.",
            )


@dataclass(frozen=True)
class FolderState:
    """The newest publication of a batch.

    Args:
        number: of the publication, or 0.
        attempt: whose rows it has, or None if they were replaced.
    """

    number: int
    attempt: WriteAttempt | None


class FolderOutput:
    """What an attempt has written into a directory of its own.

    Args:
        folder: of the batch.
        aside: where no reader of the table looks, on the same file system.
        attempt: the attempt.
    """

    def __init__(self, folder: Path, aside: Path, attempt: WriteAttempt) -> None:
        self.attempt = attempt
        self.name = f"epoch-{attempt.epoch}.{attempt.id}"
        self.writing = aside / f".writing-{attempt.epoch}.{attempt.id}"
        self._aside = aside
        self.number = 0
        self.check: Callable[[], None] = lambda: None
        self._folder = folder

    def begin(self) -> None:
        """Creates the directory that the attempt writes into."""
        self.writing.mkdir(parents=True)
        (self.writing / _TAKEN).touch()

    def read(self) -> FolderState:
        """Returns the highest number, and whose rows readers see under it."""
        found = (_PUBLICATION.fullmatch(path.name) for path in _entries(self._folder))
        number = max((int(match[1]) for match in found if match), default=0)
        rows = [_ROWS.fullmatch(path.name) for path in self._publication(number)]
        attempts = [WriteAttempt(int(match[1]), match[2]) for match in rows if match]
        return FolderState(number, attempts[0] if attempts else None)

    def published(self, state: FolderState) -> WriteAttempt | None:
        """Returns the attempt whose rows readers see."""
        return state.attempt

    def replace(self, state: FolderState) -> bool:
        """Publishes the rows under the next number, unless it is taken.

        Raises:
            InvalidArgument: if the table has other columns.
            StorageFailed: if the rows were swept.
        """
        self.check()
        if not (self.writing / _TAKEN).exists():
            raise StorageFailed(
                f"{self.writing} was removed before it was published",
                "Run the batch again. Sweep only files that are older than an attempt takes.",
            )
        for path in self._publication(state.number):
            if _ROWS.fullmatch(path.name):
                _rename(path, self._aside / f".trash-{uuid.uuid4().hex}")
        sync(*self._folder.glob(f"publication-{state.number}"))
        self.number = state.number + 1
        try:
            self.writing.rename(self._folder / f"publication-{self.number}")
        except OSError as error:
            # A network file system may repeat a rename whose answer was lost.
            if error.errno in _EXISTS or self.read().attempt == self.attempt:
                return False
            raise
        return True

    def _publication(self, number: int) -> list[Path]:
        return _entries(self._folder / f"publication-{number}")


def _sweep(aside: Path, epoch: int) -> None:
    """Removes the files that nobody reads or publishes any more, as far as this is possible."""
    with suppress(OSError):
        for path in _entries(aside):
            written = _WRITING.fullmatch(path.name)
            if written and int(written[1]) < epoch:
                _rename(path, aside / f".trash-{uuid.uuid4().hex}")
        for path in aside.glob(".trash-*"):
            shutil.rmtree(path, ignore_errors=True)


def _create(folder: Path, file: str, text: str) -> None:
    """Creates a directory with a file in one step, unless it exists."""
    new = folder.with_name(f".new-{uuid.uuid4().hex}")
    (new / file).parent.mkdir(parents=True)
    (new / file).write_text(text)
    sync(new / file, *(new / file).parents)
    try:
        new.rename(folder)
    except OSError:
        # Another writer was first: a rename only replaces an empty directory.
        if not _entries(folder):
            raise
        shutil.rmtree(new)
    sync(folder.parent)


def _rename(path: Path, target: Path) -> None:
    """Renames a directory, which somebody else may have renamed already."""
    with suppress(FileNotFoundError):
        path.rename(target)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
