"""Publishes a batch's files on a file system where renaming a directory is atomic.

A batch has the directory `batch-<id>/`, a time window `window-<id>/`, and each publication of it a
number there, starting at 1:

    publication-<n>/epoch-<epoch>.<attempt>/    the rows; readers see them
    publication-<n>/_taken                      keeps the number taken when the rows are gone

Beside the table, where patterns for the table's files do not match, a batch has another directory,
`.<table>.pgque/batch-<id>/`:

    .writing-<epoch>.<attempt>_tasks/           what its tasks are writing
    .writing-<epoch>.<attempt>/                 what an attempt publishes of it
    .trash-<random>/                            rows that were replaced, or were never published

An attempt publishes in the steps of `publication.py`. The state that it reads is the highest number
n. Then it replaces:

a. It renames the rows of publication n, if there are any, to `.trash-…`, out of the table.
b. It renames its directory `.writing-…` to `publication-<n+1>`, with the rows in it. The operating
   system refuses this if there is a directory of that name that is not empty.

A number that was taken stays taken, because its directory is never removed or empty. So step b
succeeds only for the first attempt that read n, as `publication.py` needs. Step a changes only what
the attempt read before its last renewal, so a stale attempt cannot remove what a later one
publishes. An attempt that publishes n+1 has done step a for n before. So readers see the rows of at
most one publication, and never a part of one. They see no rows for a moment between the steps, or
until the next attempt if the process dies there; then the batch is not acked.

Files are synced to disk before the steps, and names before the ack.

An attempt only sweeps what attempts of lower epochs wrote. Spark and Hadoop recreate a directory
that is removed while they write to it, so a swept attempt may end with a part of its files. Before
it publishes, it finds that its lease is gone, or that `_taken` is. Swept directories are first
renamed to `.trash-<random>` in one step, so a half-deleted one is never published.
"""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from ....client import BatchNotOpen, ConnectionFailed, InvalidArgument, LeaseLost
from ....client.read_batch import ReadBatch
from ..publication import WriteAttempt, check_claim, publish
from .data_files import write_files
from .record import entries
from .storage import Storage, StorageFailed, sync

_ROWS = re.compile(r"epoch-(\d+)\.(\w+)")
_PUBLICATION = re.compile(r"publication-(\d+)")
_WRITING = re.compile(r"\.writing-(\d+)\.\w+")
_TAKEN = "_taken"
_REFUSED = re.compile(
    "No space left on device|Disk quota exceeded|Read-only file system|Permission denied"
    "|Input/output error|Mkdirs failed to create [^ ]*"
)
_EXISTS = (errno.ENOTEMPTY, errno.EEXIST)
# Otherwise Spark writes INT96. Readers take it for nanoseconds since 1970, too few for old dates.
_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def publish_folder(
    location: Path, claim: ReadBatch, frame: DataFrame, check: Callable[[], None]
) -> Path:
    """Stores a batch, replacing earlier attempts' rows; returns the rows' directory.

    `check` is called before each step a.

    Raises:
        OSError: if the file system refuses it.
    """
    epoch = claim.lease.epoch
    kind = "window" if claim.is_window else "batch"
    folder = location / f"{kind}-{claim.batch_id}"
    aside = beside(location) / folder.name
    output = FolderOutput(folder, aside, WriteAttempt(epoch, uuid.uuid4().hex), check)
    check_claim(claim, output.published(output.read()))
    sweep(aside, epoch)
    try:
        output.begin()
        write_rows(frame, output.writing / output.name)
        publish(claim, output)
        sync(folder, location, *location.parents)
    except (LeaseLost, BatchNotOpen, InvalidArgument):
        raise
    except Exception as error:
        # If a later attempt swept the files, this raises an error that says so.
        with suppress(ConnectionFailed):
            output.check_overtaken(claim)
        # Spark's own error about it is a page long.
        if refused := _REFUSED.search(str(error)):
            raise OSError(refused[0]) from None
        raise
    finally:
        output.end()
    sweep(aside, epoch)
    return folder / f"publication-{output.number}" / output.name


def beside(location: Path) -> Path:
    """Returns the directory for files that readers of the table must not see."""
    # A link may lead to another file system.
    table = location.resolve()
    if os.path.ismount(table):
        raise InvalidArgument(
            f"{table} is the root of a file system, so rows cannot be written beside the table and "
            "then be renamed into it",
            "Write to a directory in it.",
        )
    return table.parent / f".{table.name}.pgque"


def write_rows(frame: DataFrame, rows: Path) -> None:
    """Writes a DataFrame into a new directory, and syncs it to disk.

    Tasks write into another one, where the files of attempts that Spark did not accept are left.
    """
    tasks = rows.parent.with_name(f"{rows.parent.name}_tasks")
    try:
        # An older Spark has no such option for a single write.
        if frame.sparkSession.version < "4.2" and '"timestamp"' in frame.schema.json():
            tasks.mkdir()
            files = write_files(frame, Storage.of(tasks.parent), tasks.name)
            written = [tasks.parent / file.path for file in files]
        else:
            frame.write.options(**_MICROSECONDS).parquet(str(tasks))
            written = [path for path in tasks.iterdir() if path.is_file()]
        rows.mkdir()
        for path in written:
            path.rename(rows / path.name)
    finally:
        shutil.rmtree(tasks, ignore_errors=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(sync, (*rows.iterdir(), rows, rows.parent)))


@dataclass(frozen=True)
class FolderState:
    """Returns the number of a batch's newest publication, or 0, and the attempt with its rows."""

    number: int
    attempt: WriteAttempt | None


class FolderOutput:
    """The rows that an attempt has written into its own directory.

    Args:
        aside: a folder on the same file system that readers of the table ignore.
        check: called before anything is replaced.
    """

    def __init__(
        self,
        folder: Path,
        aside: Path,
        attempt: WriteAttempt,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.attempt = attempt
        self.name = f"epoch-{attempt.epoch}.{attempt.id}"
        self.writing = aside / f".writing-{attempt.epoch}.{attempt.id}"
        self.number = 0
        self._has_begun = False
        self.folder = folder
        self.aside = aside
        self._check = check

    def begin(self) -> None:
        """Creates the directory that the attempt writes into."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.writing.mkdir(parents=True)
        (self.writing / _TAKEN).touch()
        self._has_begun = True

    def end(self) -> None:
        """Removes rows that were not published."""
        shutil.rmtree(self.writing, ignore_errors=True)
        with suppress(OSError):  # Not empty: another attempt is working there.
            self.aside.rmdir()

    def read(self) -> FolderState:
        """Returns the highest number, and the attempt whose rows readers see under it."""
        found = (_PUBLICATION.fullmatch(path.name) for path in entries(self.folder))
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
            StorageFailed: if the rows were swept.
        """
        self._check()
        self._check_not_swept()
        self._discard_replaced(state)
        self.number = state.number + 1
        try:
            self.writing.rename(self.folder / f"publication-{self.number}")
        except OSError as error:
            # A network file system may repeat a rename whose answer was lost.
            if error.errno in _EXISTS or self.read().attempt == self.attempt:
                return False
            raise
        return True

    def check_overtaken(self, claim: ReadBatch) -> None:
        """Refuses an attempt that failed because a later one took over.

        Raises:
            LeaseLost, BatchNotOpen, InvalidArgument: as for `check_claim`.
            StorageFailed: if the rows were swept.
        """
        earlier = self.published(self.read())
        if earlier != self.attempt:
            check_claim(claim, earlier)
            if self._has_begun:
                self._check_not_swept()

    def _check_not_swept(self) -> None:
        if not (self.writing / _TAKEN).exists():
            raise StorageFailed(
                f"{self.writing} was removed before it was published",
                "A later run of the same batch or window does so, and stores it. Otherwise run it "
                "again, and only sweep files that are older than any running attempt.",
            )

    def _discard_replaced(self, state: FolderState) -> None:
        """Takes step a."""
        for path in self._publication(state.number):
            if _ROWS.fullmatch(path.name):
                discard(path, self.aside)
        sync(*self.folder.glob(f"publication-{state.number}"))

    def _publication(self, number: int) -> list[Path]:
        return entries(self.folder / f"publication-{number}")


def sweep(aside: Path, epoch: int) -> None:
    """Removes the files that are no longer read or published, as far as possible."""
    with suppress(OSError):
        for path in entries(aside):
            written = _WRITING.fullmatch(path.name)
            if written and int(written[1]) < epoch:
                discard(path, aside)
        for path in aside.glob(".trash-*"):
            shutil.rmtree(path, ignore_errors=True)


def discard(path: Path, aside: Path) -> None:
    """Renames a directory so that it is swept; another process may already have done so."""
    with suppress(FileNotFoundError):
        path.rename(aside / f".trash-{uuid.uuid4().hex}")
