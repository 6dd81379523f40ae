"""The files of an attempt at a batch, and their publication in a table of a lake.

One commit adds them to the table, and replaces the rows of an earlier attempt at the batch. It
succeeds only on the version that was read before the lease was renewed, as `publication.py`
demands.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ...client import BatchNotOpen, InvalidArgument, LeaseLost
from ...client.read_batch import ReadBatch
from ..batch import SparkBatch
from ..cluster.lost_lease import cancelled_without_lease
from .files.data_files import DataFile, check_times, write_files
from .files.positions import check_keys
from .files.storage import StorageFailed, written_for
from .lake_table import LakeTable
from .members import epochs_in, of_shard, recorded
from .publication import WriteAttempt, publish
from .table_checks import check_fit

Table = TypeVar("Table")

FOLDER = "data"
# The names of data files: batch, epoch and the file's own name.
WRITTEN = re.compile(rf"{FOLDER}/(\d+)-(\d+)-[0-9a-f]{{32}}/(part-[0-9a-f]{{32}}\.parquet)")


class TableOutput(ABC, Generic[Table]):
    """The files of an attempt at a batch, to be published in a table.

    Args:
        key: the columns by which rows are replaced; empty if rows are only added.

    Attributes:
        batch: the claim.
        conflict: the error of the format's library for a commit on a state that is not the newest.
        version: the version of the table that has the files, once they are published.
        arrow: the columns that the table then has, if files have ids of columns.
    """

    conflict: ClassVar[type[Exception]]

    def __init__(
        self, sink: LakeTable, claim: ReadBatch, schema: StructType, key: Sequence[str] = ()
    ) -> None:
        self.attempt = WriteAttempt(claim.lease.epoch, uuid.uuid4().hex)
        self.batch = claim
        self.files: list[DataFile] = []
        self.version = -1
        self.arrow: pa.Schema | None = None
        self.storage = sink.storage
        self._sink = sink
        self._schema = schema
        self._key = key
        self._table_id: object = None
        self._may_be_published = False

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(file.rows for file in self.files)

    @property
    def folder(self) -> str:
        """The folder of the attempt's files, which no other attempt uses."""
        return f"{FOLDER}/{self.batch.batch_id}-{self.attempt.epoch}-{self.attempt.id}"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {of_shard(shard): own for shard, own in self.batch.incarnations.items()}

    @abstractmethod
    def load(self) -> Table:
        """Loads the newest state of the table."""

    @abstractmethod
    def create(self) -> Table:
        """Creates the table, or loads the one that another attempt created at the same time."""

    @abstractmethod
    def attempts_in(self, state: Table) -> Iterator[tuple[int, str, WriteAttempt]]:
        """Yields version, record and attempt of the commits in a state, the newest first."""

    @abstractmethod
    def commit(self, state: Table) -> bool:
        """Commits the rows, replacing the batch's earlier rows, if `state` is the newest one.

        Returns False if only another step was committed, such as adding columns to the table.
        """

    @abstractmethod
    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the id of the table, and a value that distinguishes its state from later ones."""

    @abstractmethod
    def rules(self, table: Table) -> list[str]:
        """Returns the rules of the table that rows from here may break, such as partitions."""

    @abstractmethod
    def columns(self, table: Table) -> StructType:
        """Returns the columns of a table that has no such rules."""

    def begin(self) -> Table:
        """Finds or creates the table, and checks that it fits, before anything is written.

        Raises:
            InvalidArgument: as for `check`.
            StorageFailed: if it can neither be loaded nor created.
        """
        with self._sink.errors(self.batch):
            try:
                table = self.load()
            except self._sink.not_found:
                table = self.create()
            # It must not be replaced by another one later.
            self._table_id = self.identity(table)[0]
            self.check(table)
        return table

    def write(self, batch: SparkBatch, frame: DataFrame, batch_id: int | None = None) -> None:
        """Makes Spark's tasks write the rows into files, as `write_files` does.

        Raises:
            LeaseLost: if another owner took the batch over.
            StorageFailed: if files cannot be written.
        """
        self._spark_batch = batch
        with self.in_tasks(batch):
            self.files = write_files(
                frame, self.storage, self.folder, batch_id=batch_id, arrow=self.arrow
            )

    @contextmanager
    def in_tasks(self, batch: SparkBatch) -> Iterator[None]:
        """Cancels the block's tasks when the lease is lost. Its errors name table and batch."""
        with (
            cancelled_without_lease(batch.spark, self.batch),
            written_for(self._sink.name, self.batch),
        ):
            yield

    def publish(self) -> None:
        """Publishes the files as `publish` does, or removes them if that is refused."""
        try:
            self.check_files()
            with recorded(self.batch, self._sink.records):
                publish(self.batch, self)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            # A conflict may be with this attempt's own commit, whose answer was lost.
            if not self._may_be_published:
                self.remove_files()
            raise

    def check_files(self) -> None:
        """Checks the rows, and their keys, before they are published."""
        check_times(f"{self._sink.name} in {self.batch}", self.files)
        if self._key:
            with self._sink.errors(self.batch):
                check_keys(self._sink.name, self.storage, self.files, self._key)

    def remove_files(self) -> None:
        """Removes files that will not be read. Files that cannot be removed now are swept later."""
        with suppress(StorageFailed):
            self.storage.remove(file.path for file in self.files)

    def read(self) -> Table:
        """Loads the newest state of the table.

        Raises:
            StorageFailed: as for `check_same`, or if it cannot be loaded.
        """
        with self._sink.errors(self.batch):
            table = self.load()
        self.check_same(table)
        return table

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch, or at a member of this vector, that a state has."""
        with self._sink.errors(self.batch):
            epochs, own = epochs_in(self._sink.epochs_of(state, self.batch)), self.attempt.epoch
            for version, record, attempt in self.attempts_in(state) if own in epochs else ():
                if (record, attempt.epoch) == (self.batch.record, own):
                    self.version = version
                    return attempt
        self._may_be_published = False
        return WriteAttempt(max(epochs), "") if epochs else None

    def replace(self, state: Table) -> bool:
        """Commits the rows, replacing those that the table has of the batch."""
        with self._sink.errors(self.batch):
            try:
                return self.commit(state)
            except self.conflict:
                self._may_be_published = True
                if self.identity(self.read()) == self.identity(state):
                    raise
                return False

    def check_same(self, table: Table) -> None:
        """Refuses a table that was created after the attempt began: its files may be gone."""
        if self.identity(table)[0] != self._table_id:
            raise StorageFailed(
                f"{self._sink.name} was deleted and created again while {self.batch} was written",
                "Run the batch again: the next attempt stores it in the new table.",
            )

    def check(self, table: Table) -> list[str]:
        """Returns the columns that the table lacks.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        self.check_incarnation(table)
        self.check_rules(table)
        return check_fit(self._sink.name, self.columns(table), self._schema, self._sink.evolution)

    def check_rules(self, table: Table) -> None:
        """Raises `InvalidArgument` if the table has rules that rows from here may break."""
        if rules := self.rules(table):
            raise InvalidArgument(
                f"{self._sink.name} has {', '.join(rules)}, which this sink does not enforce",
                "Store into another table, and copy the rows from there by an engine that does. To "
                "skip files, readers need no partitions: files have statistics.",
            )

    def check_incarnation(self, table: Table) -> None:
        """Raises `InvalidArgument` for a table of another incarnation, or of none."""
        epochs_in(self._sink.refused(table, self.batch))
