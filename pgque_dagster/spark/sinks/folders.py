"""Publishes a batch's files on a file system where renaming a directory is atomic.

An attempt at a batch holds a lease with an epoch. A later claim of the batch has a higher epoch,
and only the highest one can ack. An attempt takes these steps, all in `batch_id=<id>/`:

1. Fence: it removes what attempts of lower epochs have not published (`.epoch-<n>.write-…` and
   `.epoch-<n>.ready-…`). The claim was committed before.
2. Spark writes into a folder `.epoch-<n>.write-<random>`, which readers pass over.
3. The folder is renamed to `.epoch-<n>.ready-<random>`.
4. The database renews the lease. It refuses when a later claim was committed.
5. What attempts of lower epochs have published (`epoch-<m>`) is removed.
6. The ready folder is renamed to `epoch-<n>`, which publishes it.

No attempt touches anything of a higher epoch. So the only danger to the rows of an acked attempt is
an earlier attempt that publishes its rows beside them later. This cannot happen. Let an earlier
attempt E reach step 3 before or after the later attempt L lists the folders for its fence:

- After: L's claim was committed before its fence, so E's step 4 fails. E publishes nothing.
- Before: L's fence finds E's ready folder and removes it, and E's step 6 fails. If E was faster and
  published, it did so before L's fence ended, and L's step 5 removes that.

The ready folder has its own name because Spark and Hadoop recreate a write folder that is removed
while they work: renaming a recreated folder could publish only some of the files. A write folder
that the fence removed in part may still become a ready folder, but only after the fence, and then
step 4 fails. A folder is removed by first renaming it to `.trash-<random>` in one step, so nobody
can publish a folder that is half deleted. Every attempt at the batch deletes the trash that it
finds.

An attempt that is killed leaves hidden folders, which the next attempt at the batch removes, or a
published directory of a batch that is not acked, which the next attempt replaces.
"""

import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame

from ...client import Batch, ConnectionFailed, InvalidArgument, PgqueError
from .lineage import MARKER, check_epochs

_PUBLISHED = re.compile(r"epoch-(\d+)")
_UNPUBLISHED = re.compile(r"\.epoch-(\d+)\.(?:write|ready)-\w+")
_TRASH = re.compile(r"\.trash-\w+")


class Folders:
    """A location on a file system."""

    def __init__(self, location: Path) -> None:
        self._location = location

    def lineages(self) -> set[str]:
        """Returns the lineages of the marks in the location."""
        return {path.name for path in _entries(self._location / MARKER)}

    def has_batches(self) -> bool:
        """Says whether the location contains batches."""
        return any(path.name.startswith("batch_id=") for path in _entries(self._location))

    def mark(self, lineage: str, note: str) -> None:
        """Marks the location with a lineage, unless it has a mark already.

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
        marker = self._location / MARKER
        new = marker.parent / f".new-{uuid.uuid4().hex}"
        (new / lineage).mkdir(parents=True)
        (new / lineage / "lineage.json").write_text(note)
        try:
            new.rename(marker)
        except OSError:
            # Another writer was first: a rename only replaces an empty directory.
            if not self.lineages():
                raise
            shutil.rmtree(new)

    def publish(self, claim: Batch, frame: DataFrame) -> str:
        """Stores a batch, and removes what attempts of lower epochs stored."""
        epoch = claim.lease.epoch
        folder = self._location / f"batch_id={claim.batch_id}"
        folder.mkdir(parents=True, exist_ok=True)
        published = [earlier for _, earlier in _of_epochs(folder, _PUBLISHED)]
        claim.renew()
        check_epochs(claim, str(folder), published)
        _fence(folder, epoch)

        attempt = uuid.uuid4().hex
        writing = folder / f".epoch-{epoch}.write-{attempt}"
        ready = folder / f".epoch-{epoch}.ready-{attempt}"
        target = folder / f"epoch-{epoch}"
        try:
            frame.write.parquet(str(writing))
            writing.rename(ready)
            claim.renew()
            for path, earlier in _of_epochs(folder, _PUBLISHED):
                if earlier < epoch:
                    _remove(path)
            ready.rename(target)
        except PgqueError:
            raise
        except Exception:
            # If a later attempt removed the folders, this raises the error that says so.
            with suppress(ConnectionFailed):
                claim.renew()
            raise
        finally:
            for path in (writing, ready):
                shutil.rmtree(path, ignore_errors=True)
        return str(target)


def _fence(folder: Path, epoch: int) -> None:
    """Removes what earlier attempts have not published, so that they cannot publish it."""
    for path in _entries(folder):
        if _TRASH.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    for path, earlier in _of_epochs(folder, _UNPUBLISHED):
        if earlier < epoch:
            _remove(path)


def _remove(path: Path) -> None:
    trash = path.parent / f".trash-{uuid.uuid4().hex}"
    try:
        path.rename(trash)
    except FileNotFoundError:  # Its owner renamed it, or a later attempt removed it.
        return
    shutil.rmtree(trash, ignore_errors=True)


def _of_epochs(folder: Path, names: re.Pattern[str]) -> list[tuple[Path, int]]:
    """Returns the directories whose names match, each with its epoch."""
    found = ((path, names.fullmatch(path.name)) for path in _entries(folder))
    return [(path, int(match[1])) for path, match in found if match]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
