"""Writes dead letters to a file, as JSON lines or Parquet. The file appears only when complete."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from ..client import InvalidArgument
from ..client.dead_letters import ExportedDeadLetter

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        (
            field.name,
            {"id": pa.int64(), "event_id": pa.int64(), "retry_count": pa.int32()}.get(
                field.name, _TIME if field.name in ("time", "event_time") else pa.string()
            ),
        )
        for field in fields(ExportedDeadLetter)
    ]
)


class FileFormat(Enum):
    """The format of the file."""

    JSON_LINES = "JSON_LINES"
    PARQUET = "PARQUET"


class Writer(Protocol):
    """Writes pages of dead letters to a file."""

    def write(self, letters: Iterable[ExportedDeadLetter]) -> None:
        """Adds a page."""


@contextmanager
def dead_letter_file(path: Path, file_format: FileFormat, overwrite: bool) -> Iterator[Writer]:
    """Writes a temporary file beside the path, and renames it to the path after the block.

    Yields:
        The writer. If the block raises, the temporary file is removed.

    Raises:
        InvalidArgument: if the file exists and may not be overwritten, or its folder is missing.
    """
    if not path.parent.is_dir():
        raise InvalidArgument(
            f"no folder {path.parent}", "Create it where the job runs, or set another path."
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise InvalidArgument(f"{path} exists", "Set another path, or set overwrite.")
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    opened = {FileFormat.JSON_LINES: _json_lines, FileFormat.PARQUET: _parquet}[file_format]
    try:
        with opened(unfinished) as writer:
            yield writer
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class _JsonLinesWriter:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, letters: Iterable[ExportedDeadLetter]) -> None:
        for letter in letters:
            # The payload stays a text, because it may not be JSON.
            json.dump(
                asdict(letter),
                self._file,
                ensure_ascii=False,
                default=lambda time: time.isoformat(),
            )
            self._file.write("\n")


@contextmanager
def _json_lines(path: Path) -> Iterator[Writer]:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        yield _JsonLinesWriter(file)


class _ParquetWriter:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, letters: Iterable[ExportedDeadLetter]) -> None:
        rows = [asdict(letter) for letter in letters]
        self._file.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))


@contextmanager
def _parquet(path: Path) -> Iterator[Writer]:
    with pq.ParquetWriter(path, _SCHEMA) as file:
        yield _ParquetWriter(file)
