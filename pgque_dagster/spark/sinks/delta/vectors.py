"""Deletion vectors: which rows of a data file of a Delta table are deleted.

Delta's library reads them but does not write them. A vector is the magic number and a 64-bit
Roaring bitmap in the portable format. It is in the log itself, or in a file with several vectors: a
byte with the format's version, then each vector's size, the vector and its checksum.
"""

import base64
import re
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from ..files.storage import Storage, Unreadable

_MAGIC = struct.pack("<I", 1681511377)
_VERSION = b"\x01"
_IN_TABLE, _ABSOLUTE, _INLINE = "u", "p", "i"
_UUID_CHARACTERS = 20
VECTOR_FILE = re.compile(r"(?:[^/]+/)?deletion_vector_[0-9a-f-]{36}\.bin")
# Z85 and Python's Base85 differ only in their characters.
_PYTHON = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _TO_PYTHON = str.maketrans(_PYTHON, _Z85), str.maketrans(_Z85, _PYTHON)


@dataclass(frozen=True)
class DeletionVector:
    """The deletion vector of a data file."""

    action: Mapping[str, Any]

    @property
    def id(self) -> str:
        """An id that distinguishes it from other vectors of its file."""
        found = f"{self.action['storageType']}{self.action['pathOrInlineDv']}"
        offset = self.action.get("offset")
        return found if offset is None else f"{found}@{offset}"

    @property
    def path(self) -> str | None:
        """Its file, relative to the table; None if it is elsewhere."""
        if self.action["storageType"] != _IN_TABLE:
            return None
        text = self.action["pathOrInlineDv"]
        folder, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        return f"{folder}/{_file_name(name)}" if folder else _file_name(name)

    def positions(self, storage: Storage) -> BitMap64:
        """Returns the positions of the deleted rows.

        Raises:
            StorageFailed: if its file cannot be read.
            Unreadable: if it is missing, damaged, or of another kind.
        """
        payload = self._payload(storage)
        found = None
        if payload[:4] == _MAGIC:
            with suppress(ValueError):
                found = BitMap64.deserialize(payload[4:])
        if found is None or len(found) != self.action["cardinality"]:
            raise Unreadable(
                f"the deletion vector {self.id} of a table in {storage.location} is damaged, or in "
                "a format that is not supported",
                "Restore its file, or have an engine that can read it rewrite the table.",
            )
        return found

    def _payload(self, storage: Storage) -> bytes:
        kind, text = self.action["storageType"], self.action["pathOrInlineDv"]
        size = int(self.action["sizeInBytes"])
        if kind == _INLINE:
            return base64.b85decode(text.translate(_TO_PYTHON))[:size]
        path = self.path
        if path is None:
            folder, _, path = text.rpartition("/")
            storage = Storage.of(folder, storage.options)
        with storage.errors("cannot be read"):
            source = storage.source(path)
            file = pa.OSFile(source) if isinstance(source, str) else source
            file.seek(self.action.get("offset") or 0)
            there = struct.unpack(">I", file.read(4))[0]
            payload, checksum = file.read(size), file.read(4)
        if there != size or checksum != struct.pack(">I", zlib.crc32(payload)):
            return b""
        return bytes(payload)


def write_vectors(
    storage: Storage, vectors: Iterable[tuple[str, BitMap64]]
) -> Iterator[tuple[str, DeletionVector]]:
    """Writes deletion vectors into a new file of the table. Yields each with its data file.

    Args:
        storage: the table.
        vectors: the paths of data files, and the positions of their deleted rows.

    Raises:
        StorageFailed: if the file cannot be written.
    """
    name = base64.b85encode(uuid.uuid4().bytes).decode().translate(_TO_Z85)
    with storage.create(_file_name(name)) as file:
        file.write(_VERSION)
        offset = len(_VERSION)
        for path, positions in vectors:
            payload = _MAGIC + positions.serialize()
            file.write(struct.pack(">I", len(payload)) + payload)
            file.write(struct.pack(">I", zlib.crc32(payload)))
            action = {
                "storageType": _IN_TABLE,
                "pathOrInlineDv": name,
                "offset": offset,
                "sizeInBytes": len(payload),
                "cardinality": len(positions),
            }
            yield path, DeletionVector(action)
            offset += len(payload) + 8


def _file_name(name: str) -> str:
    decoded = uuid.UUID(bytes=base64.b85decode(name.translate(_TO_PYTHON)))
    return f"deletion_vector_{decoded}.bin"
