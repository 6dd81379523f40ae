"""Publishes vectors on a file system where renaming a directory is atomic.

The table has a directory for each vector, with a number from 1 on:

    vector-<n>/epoch-<epoch>.<attempt>/    the rows
    vector-<n>/_shards.json                what the table has then

An attempt publishes as `folders.py` says, except that numbers are of the whole table, and nothing
is replaced: so each vector is in the table as long as the table exists, and of two attempts that
read the same number only the first one succeeds. `_shards.json` is carried on from one to the next:
the incarnation of each shard, and for each consumer its newest batch with the id of its vector.
"""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from ....client.vector import Vector
from ..publication import WriteAttempt
from .folders import FolderOutput, FolderState, beside, newest, store_folder
from .storage import sync
from .vectors import Stored, ids_of, newest_in, refused_shards

_STATE = "_shards.json"


class VectorFolder(FolderOutput):
    """What an attempt has written of a vector.

    Args:
        table: the directory of the table.
        claim: the vector.
        check: called before anything is published.
    """

    kind = "vector"

    def __init__(self, table: Path, claim: Vector, check: Callable[[], None]) -> None:
        # The first member is claimed again if this attempt dies, and then this is swept.
        shard, first = next(iter(claim.members.items()))
        aside = beside(table) / f"vector-{claim.incarnations[shard]}-{first.batch_id}"
        super().__init__(table, aside, WriteAttempt(first.lease.epoch, uuid.uuid4().hex), check)
        self._claim = claim

    def read(self) -> FolderState:
        """Returns the highest number, and whether this attempt or another one has a member."""
        number = newest(self.folder, self.kind)
        found = ids_of(stored_in(self.folder, self._claim, number))
        if found == {self._claim.batch_id}:
            return FolderState(number, self.attempt)
        return FolderState(number, WriteAttempt(0, "") if found else None)

    def prepare(self, state: FolderState) -> None:
        """Writes what the table has with the vector."""
        claim = self._claim
        incarnations, batches = _state(self.folder, state.number)
        incarnations |= claim.incarnations
        for shard, batch in claim.members.items():
            batches[claim.consumer_of(shard)] = [batch.batch_id, claim.batch_id]
        file = self.writing / _STATE
        file.write_text(json.dumps([incarnations, batches]))
        sync(file, self.writing)


def publish_vector(table: Path, claim: Vector, frame: DataFrame, check: Callable[[], None]) -> Path:
    """Stores a vector; returns the rows' directory."""
    return store_folder(VectorFolder(table, claim, check), claim, frame)


def stored_in(table: Path, claim: Vector, number: int) -> dict[str, Stored]:
    """Returns which vectors have members of a vector, by shard, or why a shard is refused.

    Args:
        table: the directory of the table.
        claim: the vector.
        number: of the newest vector in the table; 0 if there is none.
    """
    incarnations, batches = _state(table, number)
    file, name = table / f"vector-{number}" / _STATE, f"Parquet table {table}"
    return newest_in(name, claim, batches) | refused_shards(
        name,
        claim,
        incarnations,
        lambda shard, own: f"write {own} in place of the incarnation of {shard} in {file}.",
    )


def _state(table: Path, number: int) -> tuple[dict[str, str], dict[str, Any]]:
    if not number:
        return {}, {}
    incarnations, batches = json.loads((table / f"vector-{number}" / _STATE).read_text())
    return incarnations, batches
