"""Stores batches in the tables of a lake: what Delta and Iceberg share.

Spark's tasks write data files under names that no other attempt uses. Then the driver adds the
files to the table by one commit, in place of the rows that an earlier attempt at the batch stored.
The commit holds only on the version of the table that was read before the lease was renewed, as
`publication.py` demands. A format says how its table is loaded, checked and committed to.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pyspark.sql import DataFrame

from ...client import BatchNotOpen, InvalidArgument, LeaseLost, PgqueError
from ...client.read_batch import ReadBatch
from ..batch import SparkBatch
from ..cluster.lost_lease import cancelled_without_lease
from .files.data_files import DataFile, write_files
from .files.statistics import check_required
from .files.storage import Storage, StorageFailed, needing_extra, way_out, written_for
from .modes import SchemaEvolution
from .publication import BatchIdentity, WriteAttempt, publish

Table = TypeVar("Table")

INCARNATION = "pgque.lineage"
FOLDER = "data"
# The names of data files: batch, epoch and the file's own name.
WRITTEN = re.compile(rf"{FOLDER}/(\d+)-(\d+)-[0-9a-f]{{32}}/(part-[0-9a-f]{{32}}\.parquet)")


@dataclass(frozen=True)
class StoredBatch:
    """What a sink stored of a batch.

    Attributes:
        version: the version of the table that has it: of Delta, or the snapshot's id of Iceberg.
        rows: how many rows the DataFrame had.
    """

    version: int
    rows: int


@dataclass(frozen=True)
class TableTarget(ABC):
    """A table and how batches get into it.

    Attributes:
        storage: where the table is, or new tables are.
        evolution: whether the table may get columns.
        extra: of this package, with the libraries of the format.
        libraries: the modules whose errors are failures of the table's storage.
    """

    storage: Storage
    evolution: SchemaEvolution
    extra: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name for errors."""

    @property
    @abstractmethod
    def not_found(self) -> type[Exception]:
        """The error of the format's library for a table that is missing."""

    @contextmanager
    def existing(self) -> Iterator[None]:
        """Raises `InvalidArgument` if the block finds no table."""
        with needing_extra(self.extra):
            not_found = self.not_found
        try:
            yield
        except not_found:
            raise InvalidArgument(
                f"there is no {self.name}", "The first batch that is stored creates it."
            ) from None

    @contextmanager
    def errors(self, batch: BatchIdentity) -> Iterator[None]:
        """Raises `StorageFailed` for an error of the libraries or of files, naming the table."""
        with needing_extra(self.extra):
            not_found = self.not_found
        try:
            yield
        except PgqueError:
            raise
        except not_found:
            raise StorageFailed(
                f"{self.name} was deleted while {batch} was written",
                "Run the batch again: the next attempt creates the table.",
            ) from None
        except Exception as error:
            library = type(error).__module__.partition(".")[0]
            if library not in self.libraries and not isinstance(error, OSError):
                raise
            told = self.storage.without_secrets(error)
            raise StorageFailed(
                f"{self.name} did not take {batch}: {told}", way_out(told)
            ) from None


@dataclass(frozen=True)
class TableFacts:
    """What is compared before rows are added to a table.

    Attributes:
        incarnation: the property that the first write set, or None.
        adopt: the statement that sets it.
        columns: the type of each column, written as for the DataFrame's columns.
        required: the columns that must not be null.
        rules: of the table that rows from here may break, such as partitions.
    """

    incarnation: str | None
    adopt: str
    columns: Mapping[str, str]
    required: Sequence[str]
    rules: Sequence[str] = ()


class TableOutput(ABC, Generic[Table]):
    """The files of an attempt at a batch, to be published in a table.

    Args:
        target: the table.
        claim: the claim of the batch.
        batch: its identity.
        columns: the type of each column of the files.
    """

    def __init__(
        self,
        target: TableTarget,
        claim: ReadBatch,
        batch: BatchIdentity,
        columns: Mapping[str, str],
    ) -> None:
        self.attempt = WriteAttempt(claim.lease.epoch, uuid.uuid4().hex)
        self.files: list[DataFile] = []
        self.version = -1
        self.batch = batch
        self._target = target
        self._claim = claim
        self._columns = columns
        self._table_id: object = None

    @abstractmethod
    def load(self) -> Table:
        """Loads the newest state of the table."""

    @abstractmethod
    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose rows are in a state of the table."""

    @abstractmethod
    def commit(self, state: Table) -> bool:
        """Commits the rows in place of those of the batch, if `state` is the newest one.

        Returns:
            False if only another step was committed, such as the columns of the table.
        """

    @property
    @abstractmethod
    def conflict(self) -> type[Exception]:
        """The error of the format's library for a commit on a state that is not the newest."""

    @abstractmethod
    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the id of the table, and what tells its state from later ones."""

    @abstractmethod
    def facts(self, table: Table) -> TableFacts:
        """Returns what the rows are compared with."""

    def read(self) -> Table:
        """Loads the newest state of the table.

        Raises:
            StorageFailed: as for `check_same`, or if it cannot be loaded.
        """
        with self._target.errors(self.batch):
            table = self.load()
        self.check_same(table)
        return table

    def replace(self, state: Table) -> bool:
        """Commits the rows in place of those that the table has of the batch."""
        with self._target.errors(self.batch):
            try:
                return self.commit(state)
            except self.conflict:
                if self.identity(self.read()) == self.identity(state):
                    raise
                return False

    def check_same(self, table: Table) -> None:
        """Refuses a table that was created after the attempt began: its files may be gone.

        Raises:
            StorageFailed: if it was.
        """
        if self.identity(table)[0] != self._table_id:
            raise StorageFailed(
                f"{self._target.name} was deleted and created again while {self.batch} was written",
                "Run the batch again: the next attempt stores it in the new table.",
            )

    def begin(self, table: Table) -> None:
        """Checks before anything is written that the table fits; it must not be replaced later.

        Raises:
            InvalidArgument: as for `check`.
        """
        self._table_id = self.identity(table)[0]
        self.check(table)

    def check(self, table: Table) -> list[str]:
        """Returns the columns that the table lacks.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        name, facts = self._target.name, self.facts(table)
        self.check_incarnation(facts)
        if facts.rules:
            raise InvalidArgument(
                f"{name} has {', '.join(facts.rules)}, which this sink does not keep",
                "Store into another table, and copy the rows from there by an engine that does. To "
                "skip files, readers need no partitions: files have statistics.",
            )
        check_required(name, facts.required, self.files)
        return check_fit(name, facts, self._columns, self._target.evolution)

    def store(self, batch: SparkBatch, frame: DataFrame, storage: Storage) -> StoredBatch:
        """Writes the rows into files and publishes them. `begin` comes before.

        Args:
            batch: the batch.
            frame: its rows.
            storage: the location of the table.

        Raises:
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            InvalidArgument: if the table cannot take the rows. Nothing is stored.
            StorageFailed: if files or table cannot be written.
        """
        with (
            cancelled_without_lease(batch.spark, self._claim),
            written_for(self._target.name, self.batch),
        ):
            self.files = write_files(
                frame,
                storage,
                f"{FOLDER}/{batch.batch_id}-{self.attempt.epoch}-{self.attempt.id}",
                batch_id=batch.batch_id,
            )
        try:
            self.check_files()
            publish(self._claim, self)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            self.remove_files(storage)
            raise
        return StoredBatch(self.version, sum(file.rows for file in self.files))

    def check_files(self) -> None:
        """Checks the rows before they are published. To be overridden."""
        return

    def remove_files(self, storage: Storage) -> None:
        """Removes files that nobody will read. What cannot be removed now is swept later."""
        with suppress(StorageFailed):
            storage.remove(file.path for file in self.files)

    def check_incarnation(self, facts: TableFacts) -> None:
        """Refuses a table of another incarnation, or of none.

        Raises:
            InvalidArgument: with what to do.
        """
        name, own = self._target.name, self.batch.incarnation
        if facts.incarnation == own:
            return
        if facts.incarnation is None:
            raise InvalidArgument(
                f"{name} was not created by this sink, or for another one",
                "Store into another table. If no rows of another queue are in it, adopt it: "
                f"{facts.adopt}",
            )
        raise InvalidArgument(
            f"{name} holds batches of incarnation {facts.incarnation}, and database "
            f"{self._claim.session.database} is of incarnation {own}: batches of one id would "
            "replace each other",
            "Store into another table. After a failover or a restore, to go on here: delete the "
            "rows of the batches that the database delivers again (docs/restore.md says how to "
            f"find them), then {facts.adopt}",
        )


def check_fit(
    table: str, facts: TableFacts, given: Mapping[str, str], evolution: SchemaEvolution
) -> list[str]:
    """Compares the columns of a DataFrame with those of the table.

    Args:
        table: the table's name for errors.
        facts: of the table.
        given: the type of each column of the DataFrame.
        evolution: whether the table may get columns.

    Returns:
        The columns that the table lacks.

    Raises:
        InvalidArgument: if the rows do not fit the table.
    """
    stored = facts.columns
    for name, kind in given.items():
        if name in stored and stored[name] != kind:
            raise InvalidArgument(
                f"column {name} of {table} is {stored[name]}, and the DataFrame's is {kind}",
                f"Cast {name} in Spark, or store into another table.",
            )
    lower = {name.lower(): name for name in stored}
    added = [name for name in given if name not in stored]
    for name in added:
        if name.lower() in lower:
            raise InvalidArgument(
                f"{table} has the column {lower[name.lower()]}, and the DataFrame has {name}",
                f"Rename it: withColumnRenamed('{name}', '{lower[name.lower()]}').",
            )
    if added and evolution == "fail":
        raise InvalidArgument(
            f"{table} has no column {', '.join(added)}",
            "Leave it out, or let the sink add columns: schema_evolution='add_columns'.",
        )
    lacking = [name for name in facts.required if name not in given]
    missing = [name for name in stored if name not in given]
    if lacking or (missing and evolution == "fail"):
        raise InvalidArgument(
            f"the DataFrame has no column {', '.join(lacking or missing)}, which {table} has",
            "Add it to the DataFrame."
            if lacking
            else "Add it to the DataFrame, or have nulls in it: schema_evolution='add_columns'.",
        )
    return added
