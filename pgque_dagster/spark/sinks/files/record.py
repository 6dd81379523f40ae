"""The records in a directory of Parquet: whose batches it holds, and which columns.

The names in `<location>/_pgque/lineages/` are the incarnations whose batches are here; the content
of these files is for people. Another incarnation numbers its batches independently, so an equal id
may mean other events. Readers take the columns from any file of the table, so the first publication
records them in `_pgque/schema/schema.json`. Readers skip `_pgque`.
"""

import json
import shutil
import uuid
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql.types import StructType

from ....client import Client, InvalidArgument
from ..modes import BATCH_ID
from ..table_checks import check_fit, check_incarnation
from .storage import sync

# Spark warns about a root whose own name begins with an underscore, so its parent is the root.
_MARKS = "_pgque/lineages"
_SCHEMA = "_pgque/schema"
_OF_BATCHES = ("batch-", "window-", "united-", "vector-")


def check_owner(location: Path, session: Client) -> None:
    """Marks a new location with the database's incarnation.

    Raises:
        InvalidArgument: if it holds batches that are not of this incarnation, is inside another
            table, has another table inside it, or has the layout of an earlier version.
    """
    check_layout(location)
    own = str(session.incarnation())
    if _is_new(location):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        note = {"lineage": own, "database": session.database, "first_written_at": now}
        mark(location, own, json.dumps(note))
    check_incarnation(
        f"Parquet table {location}",
        ", ".join(sorted(incarnations(location))) or None,
        own,
        session.database,
        f"make {location}/{_MARKS}/{own}/ the only directory there, with a file in it that is not "
        "empty.",
    )


def check_not_united(location: Path, batch_id: int) -> None:
    """Raises `InvalidArgument` if a version up to 0.4.0 merged a batch's rows with others."""
    # Its compaction left "gathering" if it was killed.
    for united in (*location.glob("united-*"), *location.glob("gathering-*")):
        stored = [*united.rglob(f"batch-{batch_id}")]
        stored += [
            record.parent
            for record in united.rglob("_batches-*")
            if batch_id in json.loads(record.read_text())
        ]
        if stored:
            raise InvalidArgument(
                f"batch {batch_id} was finished, and its rows are in {stored[0]}",
                "The database went back in time, or this is another one: write to another "
                "directory, or remove these rows and the batch's id there.",
            )


def of_shards(location: str) -> InvalidArgument:
    """Returns the error for the batches of several databases."""
    return InvalidArgument(
        f"directory {location} of Parquet accepts the batches of one database, not of several",
        "Store them by DeltaSink, IcebergSink or PostgresSink; for assets, by their IO managers.",
    )


def _is_new(location: Path) -> bool:
    # Batches first: a writer that is here at the same time marks the location before it stores one.
    has_batches = any(path.name.startswith(_OF_BATCHES) for path in entries(location))
    return not has_batches and not incarnations(location)


def check_layout(location: Path) -> None:
    """Raises `InvalidArgument` for a table that a version up to 0.3.0 made."""
    if any(location.glob(f"{BATCH_ID}=*")):
        raise InvalidArgument(
            f"{location} has the layout of an earlier version (batch_id=…)",
            "CHANGELOG.md, version 0.4.0, says how to copy it; or write to another directory.",
        )


def incarnations(location: Path) -> set[str]:
    """Returns the incarnations of the marks in the location."""
    return {path.name for path in entries(location / _MARKS)}


def mark(location: Path, incarnation: str, note: str) -> None:
    """Marks the location with an incarnation, unless it has a mark already.

    Raises:
        InvalidArgument: if one of the location and another table is inside the other.
    """
    others = [path for path in location.parents if (path / _MARKS).is_dir()]
    for path in visible(location):
        others += (found.parent.parent for found in path.rglob(_MARKS))
    if others:
        raise InvalidArgument(
            f"one of {location} and {others[0]} is inside the other, so readers of the outer one "
            "would see the rows of both",
            "Write to another directory; for assets, use another base_dir or key.",
        )
    _create(location / _MARKS, f"{incarnation}/lineage.json", note)


def recorded_columns(location: Path) -> StructType | None:
    """Returns the columns of the table without `batch_id`; None before its first publication."""
    path = location / _SCHEMA / "schema.json"
    return StructType.fromJson(json.loads(path.read_text())) if path.exists() else None


def check_columns(location: Path, columns: StructType, *, record: bool = False) -> None:
    """Refuses columns, without `batch_id`, that readers of the table would see differently.

    `record` records them if the table has none.
    """
    if record and not (location / _SCHEMA).exists():
        _create(location / _SCHEMA, "schema.json", columns.json())
    check_fit(f"Parquet table {location}", recorded_columns(location) or columns, columns)


def entries(folder: Path) -> list[Path]:
    """Returns the content of a directory; empty if the directory does not exist."""
    return list(folder.iterdir()) if folder.is_dir() else []


def visible(folder: Path) -> list[Path]:
    """Returns the entries of a directory that readers look at."""
    return [path for path in entries(folder) if not path.name.startswith(("_", "."))]


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
        if not entries(folder):
            raise
        shutil.rmtree(new)
    sync(folder.parent)
