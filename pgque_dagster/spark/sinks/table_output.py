"""What an attempt at a batch stores in a table of a lake, and how it gets into the table.

Spark's tasks write data files under names that no other attempt uses. Then the driver adds the
files to the table by one commit, in place of the rows that an earlier attempt at the batch stored.
The commit holds only on the version of the table that was read before the lease was renewed, as
`publication.py` demands. A format says how its table is loaded, checked and committed to.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pyspark.sql import DataFrame

from ...client import BatchNotOpen, InvalidArgument, LeaseLost
from ...client.read_batch import ReadBatch
from ..batch import SparkBatch
from ..cluster.lost_lease import cancelled_without_lease
from .files.data_files import DataFile, write_files
from .files.storage import StorageFailed, written_for
from .modes import SchemaEvolution
from .publication import BatchIdentity, WriteAttempt, publish

if TYPE_CHECKING:
    from .tables import TableSink

Table = TypeVar("Table")

INCARNATION = "pgque.lineage"
FOLDER = "data"


@dataclass(frozen=True)
class TableFacts:
    """What is compared before rows are added to a table.

    Attributes:
        incarnation: the property that the first write set, or None.
        adopt: the statement that sets it.
        columns: the type of each column, written as for the DataFrame's columns.
        rules: of the table that rows from here may break, such as partitions.
    """

    incarnation: str | None
    adopt: str
    columns: Mapping[str, str]
    rules: Sequence[str]


class TableOutput(ABC, Generic[Table]):
    """The files of an attempt at a batch, to be published in a table.

    Args:
        sink: the table.
        claim: the claim of the batch.
        columns: the type of each column of the files.

    Attributes:
        conflict: the error of the format's library for a commit on a state that is not the newest.
        version: the version of the table that has the files, once they are published.
    """

    conflict: ClassVar[type[Exception]]

    def __init__(self, sink: "TableSink", claim: ReadBatch, columns: Mapping[str, str]) -> None:
        self.attempt = WriteAttempt(claim.lease.epoch, uuid.uuid4().hex)
        self.batch = BatchIdentity.of(claim)
        self.files: list[DataFile] = []
        self.version = -1
        self.storage = sink.storage
        self._sink = sink
        self._claim = claim
        self._columns = columns
        self._table_id: object = None

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(file.rows for file in self.files)

    @abstractmethod
    def load(self) -> Table:
        """Loads the newest state of the table."""

    @abstractmethod
    def create(self) -> Table:
        """Creates the table, or loads the one that another attempt created at the same time."""

    @abstractmethod
    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose rows are in a state of the table."""

    @abstractmethod
    def commit(self, state: Table) -> bool:
        """Commits the rows in place of those of the batch, if `state` is the newest one.

        Returns:
            False if only another step was committed, such as the columns of the table.
        """

    @abstractmethod
    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the id of the table, and what tells its state from later ones."""

    @abstractmethod
    def facts(self, table: Table) -> TableFacts:
        """Returns what the rows are compared with."""

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
        """Has Spark's tasks write the rows into files, as `write_files` does.

        Raises:
            LeaseLost: if another owner took the batch over.
            StorageFailed: if files cannot be written.
        """
        folder = f"{FOLDER}/{batch.batch_id}-{self.attempt.epoch}-{self.attempt.id}"
        with (
            cancelled_without_lease(batch.spark, self._claim),
            written_for(self._sink.name, self.batch),
        ):
            self.files = write_files(frame, self.storage, folder, batch_id=batch_id)

    def publish(self) -> None:
        """Publishes the files, or removes them if that is refused.

        Raises:
            LeaseLost: if another owner took the batch over.
            BatchNotOpen: if the batch was acked meanwhile.
            InvalidArgument: if the table cannot take the rows.
            StorageFailed: if the table cannot be written.
        """
        try:
            self.check_files()
            publish(self._claim, self)
        except (LeaseLost, BatchNotOpen, InvalidArgument):
            self.remove_files()
            raise

    def check_files(self) -> None:
        """Checks the rows before they are published. To be overridden."""
        return

    def remove_files(self) -> None:
        """Removes files that nobody will read. What cannot be removed now is swept later."""
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

    def replace(self, state: Table) -> bool:
        """Commits the rows in place of those that the table has of the batch."""
        with self._sink.errors(self.batch):
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
                f"{self._sink.name} was deleted and created again while {self.batch} was written",
                "Run the batch again: the next attempt stores it in the new table.",
            )

    def check(self, table: Table) -> list[str]:
        """Returns the columns that the table lacks.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        name, facts = self._sink.name, self.facts(table)
        self.check_incarnation(facts)
        if facts.rules:
            raise InvalidArgument(
                f"{name} has {', '.join(facts.rules)}, which this sink does not keep",
                "Store into another table, and copy the rows from there by an engine that does. To "
                "skip files, readers need no partitions: files have statistics.",
            )
        return check_fit(name, facts, self._columns, self._sink.evolution)

    def check_incarnation(self, facts: TableFacts) -> None:
        """Refuses a table of another incarnation, or of none.

        Raises:
            InvalidArgument: with what to do.
        """
        name, own = self._sink.name, self.batch.incarnation
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
    missing = [name for name in stored if name not in given]
    if missing and evolution == "fail":
        raise InvalidArgument(
            f"the DataFrame has no column {', '.join(missing)}, which {table} has",
            "Add it to the DataFrame, or have nulls in it: schema_evolution='add_columns'.",
        )
    return added
