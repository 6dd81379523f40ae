"""What tables of Delta and Iceberg record of vectors, and of windows of several shards.

A property of the table names the incarnation of each shard. A format says where it records which
vector has a batch, by the commit that stores it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from ...client.vector import Vector
from ...client.window import ShardedWindow
from .files.storage import Storage
from .publication import SHARDS, BatchIdentity
from .vectors import (
    Stored,
    check_shards,
    forget,
    not_of_shards,
    refused_shards,
    take_over,
)

INCARNATION = "pgque.lineage"


class VectorTable(ABC):
    """A table that vectors can be stored in.

    Attributes:
        not_found: the error of the format's library for a table that is missing.
        storage: where the table is, or new tables are.
    """

    not_found: ClassVar[type[Exception]]
    storage: Storage

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name for errors."""

    @abstractmethod
    def errors(self, batch: BatchIdentity) -> AbstractContextManager[None]:
        """Raises `StorageFailed` for an error of the libraries or of files, naming the table."""

    @property
    def records(self) -> Storage:
        """Where vectors record what failed in them."""
        return self.storage

    @abstractmethod
    def newest(self) -> AbstractContextManager[Any]:
        """Loads the newest state of the table for the block."""

    @abstractmethod
    def properties_of(self, table: Any) -> Mapping[str, str]:
        """Returns the properties of the table, among them those that the first write set."""

    @abstractmethod
    def adopting(self, key: str, incarnation: str) -> str:
        """Returns the statement that sets a property of the table to an incarnation."""

    @abstractmethod
    def vectors_in(self, table: Any, claim: Vector) -> dict[str, Stored]:
        """Returns which vectors have members of a vector, by shard, in a state of the table."""

    def stored_in(self, table: Any, claim: Vector) -> dict[str, Stored]:
        """Returns which vectors have members of a vector, by shard, or why a shard is refused.

        Raises:
            InvalidArgument: if the table has batches of one database.
        """
        return self.vectors_in(table, claim) | refused_shards(
            self.name, claim, self._shards_of(table), self._adopting_shard
        )

    def check_shards(self, table: Any, claim: ShardedWindow) -> None:
        """Refuses a window that does not have the shards whose rows a state of the table has.

        Raises:
            InvalidArgument: if it does not; or if the table has batches of one database.
        """
        check_shards(self.name, claim, self._shards_of(table), self._adopting_shard)

    def _shards_of(self, table: Any) -> dict[str, str]:
        """Returns the incarnations of the shards whose rows the table has."""
        known = self.properties_of(table)
        if known.get(INCARNATION) != SHARDS:
            raise not_of_shards(self.name)
        prefix = of_shard("")
        return {
            key.removeprefix(prefix): incarnation
            for key, incarnation in known.items()
            if key.startswith(prefix) and incarnation
        }

    def _adopting_shard(self, shard: str, incarnation: str) -> str:
        return self.adopting(of_shard(shard), incarnation)

    def stored(self, vector: Vector) -> dict[str, Stored]:
        """Finds the members of a vector that are stored, and gives them what failed in them.

        Returns:
            By shard, the id of the vector that has the batch, or why the shard is refused.

        Raises:
            InvalidArgument: if the table has batches of one database.
            StorageFailed: if the table or the record of what failed cannot be read.
        """
        with self.errors(BatchIdentity.of(vector)):
            try:
                with self.newest() as table:
                    found = self.stored_in(table, vector)
            except self.not_found:
                return {}
            take_over(self.records, vector, found)
            return found

    def forget(self, vector: Vector, shard: str, stored: int) -> None:
        """Removes what was recorded for the ack of a member, which the vector `stored` has."""
        forget(self.records, vector, shard, stored)


def of_shard(shard: str) -> str:
    """Returns the property that names the incarnation of a shard."""
    return f"{INCARNATION}.{shard}"
