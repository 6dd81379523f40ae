"""Tables of a lake in which batches are stored: what Delta and Iceberg share.

Spark's tasks write data files under names that no other attempt uses. Then the driver adds them to
the table in one commit (`table_output.py`). A format defines how its table is loaded, checked and
committed to.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from ...client import InvalidArgument
from ...client.read_batch import ReadBatch
from ..batch import SparkBatch
from .files.data_files import with_batch_id
from .files.storage import Storage
from .lake_table import LakeTable
from .members import Stored, forget, take_over
from .modes import Maintained, SchemaEvolution, TableMode, check_mode, refuse_window
from .table_output import TableOutput

_WITH_PARTS = (ArrayType, MapType, StructType)


@dataclass(frozen=True)
class StoredBatch:
    """The result of storing a batch.

    Attributes:
        version: the version of the table that has it: Delta's version, or Iceberg's snapshot id.
        rows: how many rows the DataFrame had.
    """

    version: int
    rows: int


class TableSink(LakeTable):
    """Stores batches in a table, and maintains it.

    Args:
        storage: where the table is, or new tables are.
        evolution: whether the table may get columns.
        mode: how rows get into it.
        key: the columns of the key, for `upsert`.
    """

    def __init__(
        self, storage: Storage, evolution: SchemaEvolution, mode: TableMode, key: Sequence[str]
    ) -> None:
        check_mode(mode, key)
        super().__init__(storage, evolution)
        self.mode, self.key = mode, tuple(key)

    @abstractmethod
    def newest(self) -> AbstractContextManager[Any]:
        """Loads the newest state of the table for the block."""

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, schema: StructType
    ) -> AbstractContextManager[TableOutput[Any]]:
        """Begins an attempt to store a batch in files with these columns."""

    @abstractmethod
    def maintain(
        self, spark: SparkSession, url: str, *, retention: timedelta = timedelta(days=7)
    ) -> Maintained:
        """Compacts small files, and deletes unused files. Batches can be stored at the same time.

        Args:
            spark: the session, whose tasks copy rows.
            url: the queue's database.
            retention: how old a file must be to be deleted: longer than any attempt at a batch or
                any reader takes.

        Raises:
            InvalidArgument: if the table does not exist, or the retention is less than a day.
            StorageFailed: if files cannot be written or removed.
        """

    def write(self, batch: SparkBatch, frame: DataFrame) -> StoredBatch:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it to a table once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The version of the table that has the batch, and the number of rows.

        Raises:
            InvalidArgument: if the table is of another or an unknown incarnation, cannot take the
                columns, or has rules that this sink does not check; if a key is null or repeated;
                or if this claim wrote the batch before.
            PermissionDenied: if the role may not use or create the catalog of Iceberg.
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked in between. Nothing is stored.
            StorageFailed: if files or table cannot be written. The batch stays open.
        """
        with self.attempt(batch, with_batch_id(frame.schema)) as output:
            output.begin()
            output.write(batch, frame, batch.batch_id)
            output.publish()
            return StoredBatch(output.version, output.rows)

    def check_merge(self, claim: ReadBatch, schema: StructType) -> None:
        """Raises `InvalidArgument` if rows of a claim cannot replace others by the key."""
        if self.key:
            refuse_window(claim, f"mode {self.mode} of {self.name}")
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise InvalidArgument(
                f"the DataFrame has no column {', '.join(missing)}, which is part of the key of "
                f"{self.name}",
                f"It has: {', '.join(schema.names)}.",
            )
        for name in self.key:
            if isinstance(schema[name].dataType, _WITH_PARTS):
                raise InvalidArgument(
                    f"the key of {self.name} has the column {name}, whose values have parts",
                    "Use columns of plain types, such as one of the parts.",
                )

    @contextmanager
    def existing(self) -> Iterator[None]:
        """Raises `InvalidArgument` if the block finds no table."""
        try:
            yield
        except self.not_found:
            raise InvalidArgument(
                f"there is no {self.name}", "The first stored batch creates it."
            ) from None

    def stored(self, claim: ReadBatch) -> dict[str, Stored]:
        """Finds the members of a vector that are stored, and loads their failures.

        Returns:
            By shard, the id of the vector that has the batch, or why the shard is refused.

        Raises:
            InvalidArgument: if the table has batches of one database.
            StorageFailed: if the table or the record of failures cannot be read.
        """
        with self.errors(claim):
            try:
                with self.newest() as table:
                    found = {**self.epochs_of(table, claim), **self.refused(table, claim)}
            except self.not_found:
                return {}
            take_over(self.records, claim, found)
            return found

    def forget(self, member: ReadBatch, vector: int) -> None:
        """Removes the record for the ack of a member that a vector has stored."""
        forget(self.records, member, vector)
