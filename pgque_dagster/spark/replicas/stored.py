"""A replica as stored in the lake: its owner, and the changes that its versions have."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import HARD, Deletes, check_kept_by, kept_by
from ...client.replicas.source import SourceTable
from ..sinks.tables import TableSink
from .deletes import live_rows, mark_columns
from .source import spark_columns

Table = TypeVar("Table")

_SOURCE = "pgque.replica_of"
_KEPT_BY = "pgque.deletes"


@dataclass(frozen=True)
class ReplicaState:
    """A version of a replica, and the source changes that it has.

    Attributes:
        version: the version of the Delta table, or the snapshot's id of Iceberg.
        tick_id: it has all changes up to this tick; those of later ticks only if `copied` has them.
        copied: the snapshot of its last copy, as `pg_snapshot` prints it.
        attempt: the attempt that made it.
    """

    version: int
    tick_id: int
    copied: str
    attempt: str


class StoredReplica(ABC, Generic[Table]):
    """The replica of a table as stored in the lake: its columns, its versions and its owner.

    Attributes:
        location: the location of the replica, for messages.
    """

    location: str

    def __init__(self, source: SourceTable, sink: TableSink, owner: str, deletes: Deletes) -> None:
        self.source = source
        self.sink = sink
        self.deletes = deletes
        # The table's properties, which name its owner and what it keeps.
        self.properties = {
            _SOURCE: f"{owner}/{source.name}",
            _KEPT_BY: kept_by(deletes, source.key),
        }

    def fits(self, stored: t.StructType) -> bool:
        """Returns whether the replica has the columns that it should have."""
        return kinds(stored) == kinds(self.columns(stored))

    def columns(self, stored: Iterable[t.StructField] = ()) -> t.StructType:
        """Returns the columns of the replica.

        Args:
            stored: the columns that it has. A column that the source no longer has stays if rows
                are kept.
        """
        columns = [*spark_columns(self.source), *mark_columns(self.deletes)]
        names = {column.name for column in columns}
        kept = () if self.deletes == HARD else (x for x in stored if x.name not in names)
        return t.StructType([*columns, *kept])

    def live_rows(self, spark: SparkSession, version: int) -> DataFrame:
        """Returns the rows that the source had at a version."""
        return live_rows(self.read(spark, version), self.deletes)

    def newest_rows(self, spark: SparkSession) -> DataFrame | None:
        """Returns the rows of the newest version; None if there is no table."""
        found = self.newest()
        return None if found is None else self.read(spark, found[0])

    def check(self, properties: Mapping[str, str]) -> None:
        """Refuses a table that is not this replica, or keeps rows in another way."""
        name, source, mine = self.sink.name, properties.get(_SOURCE), self.properties[_SOURCE]
        if source != mine:
            raise InvalidArgument(
                f"{name} is {f'the replica of {source}' if source else 'no replica'}, and not of "
                f"{mine}",
                "Replicate to another place, or move that table away.",
            )
        check_kept_by(name, properties.get(_KEPT_BY, HARD), self.properties[_KEPT_BY])

    def state(self) -> ReplicaState | None:
        """Returns the state of the newest version; None if no batch can follow it."""
        version, _, record = self.newest() or (None, None, None)
        if version is None or record is None:
            return None
        return ReplicaState(version, record["tick_id"], record["copied"], record["attempt"])

    def foreign_version(self) -> int | None:
        """Returns the newest version with rows if another program wrote it; otherwise None."""
        _, version, record = self.newest() or (None, None, None)
        return version if record is None else None

    @abstractmethod
    def newest(self) -> tuple[int | None, int | None, dict[str, Any] | None] | None:
        """Returns the newest version, and what `last_change` returns for it.

        None if there is no table. There is no version before the first commit of rows, or if the
        columns differ.
        """

    @abstractmethod
    def last_change(self, table: Table) -> tuple[int | None, dict[str, Any] | None]:
        """Returns the version of the last commit that changed rows in a state, and its record.

        There is no version before the first such commit, and no record if rows may be another
        program's.
        """

    @abstractmethod
    def read(self, spark: SparkSession, version: int | None) -> DataFrame:
        """Returns the rows of a version; None for the newest version."""


def kinds(columns: t.StructType) -> dict[str, str]:
    """Returns the type of each column, as a text."""
    return {column.name: column.dataType.simpleString() for column in columns}
