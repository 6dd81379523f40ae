"""Tables of a lake in which batches are stored: what Delta and Iceberg share.

Spark's tasks write data files under names that no other attempt uses. Then the driver adds them to
the table by one commit, in place of the rows of an earlier attempt at the batch. The commit holds
only on the version that was read before the lease was renewed, as `publication.py` demands. A
format says how its table is loaded, checked and committed to.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ...client import BatchNotOpen, InvalidArgument, LeaseLost, PgqueError
from ...client.read_batch import ReadBatch
from ...client.sharded import ShardedClaim
from ...client.vector import Vector
from ...client.window import ShardedWindow
from ..batch import SparkBatch
from ..cluster.lost_lease import cancelled_without_lease
from .files.data_files import DataFile, with_batch_id, write_files
from .files.storage import Storage, StorageFailed, is_away, way_out, written_for
from .modes import Maintained, SchemaEvolution
from .publication import BatchIdentity, WriteAttempt, publish
from .table_checks import check_fit, check_incarnation
from .vector_tables import INCARNATION, VectorTable, of_shard
from .vectors import ids_of, recorded

Table = TypeVar("Table")

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


class TableSink(VectorTable):
    """A table that batches are stored in.

    Args:
        storage: where the table is, or new tables are.
        evolution: whether the table may get columns.

    Attributes:
        libraries: the modules whose errors are failures of the table's storage.
    """

    libraries: ClassVar[tuple[str, ...]]

    def __init__(self, storage: Storage, evolution: SchemaEvolution) -> None:
        if evolution not in get_args(SchemaEvolution):
            raise InvalidArgument(
                f"no schema_evolution {evolution!r}", "There are fail and add_columns."
            )
        self.storage = storage
        self.evolution = evolution

    @abstractmethod
    def attempt(
        self, batch: SparkBatch, schema: StructType
    ) -> AbstractContextManager["TableOutput[Any]"]:
        """Begins an attempt to store a batch in files with these columns."""

    @abstractmethod
    def maintain(self, url: str, *, retention: timedelta = timedelta(days=7)) -> Maintained:
        """Unites small files, and deletes files that nobody needs. Batches can be stored meanwhile.

        Args:
            url: the queue's database.
            retention: how old a file must be to be deleted: longer than any attempt at a batch and
                any reader takes.

        Raises:
            InvalidArgument: if there is no table, or the retention is under a day.
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
                if this claim wrote the batch before.
            PermissionDenied: if the role may not use or create the catalog of Iceberg.
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            StorageFailed: if files or table cannot be written. The batch stays open.
        """
        with self.attempt(batch, with_batch_id(frame.schema)) as output:
            output.begin()
            output.write(batch, frame, batch.batch_id)
            output.publish()
            return StoredBatch(output.version, output.rows)

    @contextmanager
    def existing(self) -> Iterator[None]:
        """Raises `InvalidArgument` if the block finds no table."""
        try:
            yield
        except self.not_found:
            raise InvalidArgument(
                f"there is no {self.name}", "The first batch that is stored creates it."
            ) from None

    @contextmanager
    def errors(self, batch: BatchIdentity) -> Iterator[None]:
        """Raises `StorageFailed` for an error of the libraries or of files, naming the table."""
        try:
            yield
        except PgqueError:
            raise
        except self.not_found:
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
                f"{self.name} did not take {batch}: {told}",
                way_out(told),
                passing=is_away(error, told),
            ) from None


class TableOutput(ABC, Generic[Table]):
    """The files of an attempt at a batch, to be published in a table.

    Args:
        sink: the table.
        claim: the claim of the batch.
        schema: the columns of the files.

    Attributes:
        conflict: the error of the format's library for a commit on a state that is not the newest.
        version: the version of the table that has the files, once they are published.
    """

    conflict: ClassVar[type[Exception]]

    def __init__(self, sink: "TableSink", claim: ReadBatch, schema: StructType) -> None:
        self.attempt = WriteAttempt(claim.lease.epoch, uuid.uuid4().hex)
        self.batch = BatchIdentity.of(claim)
        self.files: list[DataFile] = []
        self.version = -1
        self.storage = sink.storage
        self._sink = sink
        self._claim = claim
        self._schema = schema
        self._table_id: object = None

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(file.rows for file in self.files)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        own = {INCARNATION: self.batch.incarnation}
        if isinstance(self._claim, ShardedClaim):
            own |= {of_shard(shard): each for shard, each in self._claim.incarnations.items()}
        return own

    @abstractmethod
    def load(self) -> Table:
        """Loads the newest state of the table."""

    @abstractmethod
    def create(self) -> Table:
        """Creates the table, or loads the one that another attempt created at the same time."""

    @abstractmethod
    def published_batch(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose rows are in a state of the table."""

    @abstractmethod
    def version_of(self, state: Table) -> int:
        """Returns the version that a state of the table is."""

    @abstractmethod
    def commit(self, state: Table) -> bool:
        """Commits the rows in place of those of the batch, if `state` is the newest one.

        Returns False if only another step was committed, such as the columns of the table.
        """

    @abstractmethod
    def identity(self, table: Table) -> tuple[object, object]:
        """Returns the id of the table, and what tells its state from later ones."""

    @abstractmethod
    def rules(self, table: Table) -> list[str]:
        """Returns what rows from here may break in the table, such as partitions."""

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
        """Publishes the files as `publish` does, or removes them if that is refused."""
        try:
            self.check_files()
            with recorded(self._claim, self._sink.records):
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

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch, or at a member of this vector, that a state has."""
        with self._sink.errors(self.batch):
            if not isinstance(self._claim, Vector):
                return self.published_batch(state)
            found = ids_of(self._sink.stored_in(state, self._claim))
            if found != {self._claim.batch_id}:
                return WriteAttempt(0, "") if found else None
            self.version = self.version_of(state)
            return self.attempt

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
        self.check_incarnation(table)
        self.check_rules(table)
        return check_fit(self._sink.name, self.columns(table), self._schema, self._sink.evolution)

    def check_rules(self, table: Table) -> None:
        """Refuses a table with rules that rows from here may break, by `InvalidArgument`."""
        if rules := self.rules(table):
            raise InvalidArgument(
                f"{self._sink.name} has {', '.join(rules)}, which this sink does not keep",
                "Store into another table, and copy the rows from there by an engine that does. To "
                "skip files, readers need no partitions: files have statistics.",
            )

    def check_incarnation(self, table: Table) -> None:
        """Refuses a table of another incarnation, or of none, by `InvalidArgument`."""
        sink, own = self._sink, self.batch.incarnation
        if isinstance(self._claim, Vector):
            ids_of(sink.stored_in(table, self._claim))
            return
        if isinstance(self._claim, ShardedWindow):
            sink.check_shards(table, self._claim)
            return
        check_incarnation(
            sink.name,
            sink.properties_of(table).get(INCARNATION),
            own,
            self._claim.session.database,
            sink.adopting(INCARNATION, own),
        )
