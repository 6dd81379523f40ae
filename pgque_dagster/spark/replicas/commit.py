"""What an attempt publishes in a lake replica; combined with the output class of a format."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...client.errors import InvalidArgument
from ...client.replicas.deletes import stored_key
from ...client.replicas.shape import Altered
from ...client.replicas.standing import ReplicaChanged
from ..batch import SparkBatch
from ..reading.in_tasks import as_types
from ..sinks.files.data_files import DataFile
from ..sinks.files.file_reader import ListedFile
from ..sinks.files.positions import SearchedFile, find_positions
from ..sinks.files.rewriting import rewrite_files
from ..sinks.publication import WriteAttempt
from ..sinks.table_output import TableOutput
from .altering import NewColumns, columns_in, new_columns
from .stored import ReplicaState, StoredReplica, Table


@dataclass(frozen=True)
class Change:
    """How a table gets other columns.

    Attributes:
        files: the files whose rows are rewritten: all, or none.
        arrow: the columns of their copies.
        prepared: what the format needs to commit it.
    """

    files: Sequence[ListedFile]
    arrow: pa.Schema
    prepared: Any


@dataclass(frozen=True)
class _Written:
    """A file that was rewritten with other columns. The copy is None if it has no rows."""

    file: ListedFile
    arrow: pa.Schema
    copy: DataFile | None


class ReplicaOutput(TableOutput[Table]):
    """What an attempt publishes in a replica; combined with the output class of a format.

    Attributes:
        changes: how many rows of a copy it changes; None if it has all rows.
        repairs: the replica that it was compared with; None if it follows the copy that it changes.
        grew_by: by how many rows the batch made the replica grow; None if that is unknown, as after
            an earlier attempt.
        foreign: the version with another program's rows that a copy may replace.
        can_adopt: whether a commit can delete rows of files that it adds.
        adopted: the files of a copy in parts that it publishes, if any.
        gone: by the paths of these files, the positions of their rows that it deletes.
        keys: the files with the keys of the changes; None for another copy.
    """

    grew_by: int | None = None
    changes: int | None = None
    repairs: ReplicaState | None = None
    foreign: int | None = None
    can_adopt = True
    adopted: Sequence[DataFile] | None = None
    gone: Mapping[str, BitMap64]
    keys: Sequence[DataFile] | None = None

    def replicate(self, replica: StoredReplica[Table], batch: SparkBatch, copied: str) -> None:
        """Sets what is replicated."""
        name = self.batch
        self._replica, self._spark_batch = replica, batch
        self._row_key = stored_key(replica.deletes, replica.source.key)
        self._app_id = f"pgque/{name.incarnation}/{name.queue}/{name.consumer}"
        self._tick_id = batch.claim.lease.tick_id
        self._copied = copied
        self._is_again = False

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a new table."""
        return {**super().properties, **self._replica.properties}

    @property
    def record(self) -> dict[str, Any]:
        """The record of a commit."""
        return {
            "app_id": self._app_id,
            "batch_id": self.batch.batch_id,
            "epoch": self.attempt.epoch,
            "attempt": self.attempt.id,
            "tick_id": self._tick_id,
            "copied": self._copied,
            "columns": columns_in(self._replica.source.shape),
        }

    @property
    def file_columns(self) -> str:
        """The columns of files. The table cannot take files with other columns."""
        return self._schema.simpleString()

    def begin_changes(self) -> t.StructType:
        """Begins to change the replica. Returns its columns, including those that only it has."""
        self._schema = self._replica.columns(self.columns(self.begin()))
        return self._schema

    def write_copy(self, rows: DataFrame) -> None:
        """Makes tasks write rows of a copy as the table's own files have them."""
        self.write(self._spark_batch, as_types(rows, self._schema))

    def adopt(self, files: Sequence[DataFile]) -> None:
        """Makes files the whole content, except rows with a key of the staged changes."""
        batch, listed = self._spark_batch, [SearchedFile(x.path, x.size) for x in files]
        with self.in_tasks(batch):
            self.gone = find_positions(batch.spark, self.storage, listed, self.keys or ())
        self.adopted = files

    @property
    def adopted_rows(self) -> int:
        """How many rows of adopted files it keeps."""
        return sum(x.rows for x in self.adopted or ()) - sum(map(len, self.gone.values()))

    @abstractmethod
    def staged(self, changes: DataFrame) -> AbstractContextManager[int]:
        """Keeps changes while the block runs, which publishes them. Yields their number."""

    def touched(self, changes: DataFrame) -> DataFrame | None:
        """Returns at least the replica's rows with a key of the changes."""
        return self._replica.newest_rows(self._spark_batch.spark)

    def alter(self, altered: Altered, shape: str) -> bool:
        """Gives the replica the columns that its source has now, in one commit.

        If the table's metadata is not enough, tasks write its files again. The state is read before
        the lease is renewed, so an attempt that lost it changes nothing, as in `publication.py`.

        Args:
            altered: how the source has changed.
            shape: its earlier shape.

        Returns:
            False if only a copy can do it: there is no replica, another program wrote last, or a
            column has unknown values.
        """
        batch, had = self._spark_batch, columns_in(shape)
        now, written = columns_in(self._replica.source.shape), dict[str, _Written]()
        while True:
            try:
                state = self.load()
            except self._sink.not_found:
                return False
            self.check(state)
            _, record = self._replica.last_change(state)
            if record is None or record.get("columns", had) == now:
                return record is not None
            columns = new_columns(self._replica, self.columns(state), altered)
            if columns is None or record.get("columns", had) != had:
                return False
            change = self.change_to(state, columns)
            if change is None:
                return False
            found = [written.get(x.path) for x in change.files]
            pairs = [(file, done) for file, done in zip(change.files, found, strict=True)]
            left = [
                x for x, done in pairs if not done or (done.file, done.arrow) != (x, change.arrow)
            ]
            if left:
                with self.in_tasks(batch):
                    new = rewrite_files(
                        batch.spark,
                        self.storage,
                        [[x] for x in left],
                        self.folder,
                        columns.schema,
                        change.arrow,
                        columns.of,
                    )
                for file, copy in zip(left, new, strict=True):
                    written[file.path] = _Written(file, change.arrow, copy)
                continue
            batch.claim.renew()
            copies = [done.copy for done in found if done and done.copy]
            with suppress(self.conflict):
                self.commit_change(state, change, copies, {**record, "columns": now})
                return True

    @abstractmethod
    def change_to(self, state: Table, columns: NewColumns) -> Change | None:
        """Returns how a state gets other columns; None if it cannot."""

    @abstractmethod
    def commit_change(
        self, state: Table, change: Change, copies: Sequence[DataFile], record: dict[str, Any]
    ) -> None:
        """Commits a change, with copies in place of its files and the record of the last commit."""

    @abstractmethod
    def records(self, state: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the records of a table, the newest first, each with its version."""

    @abstractmethod
    def last_batch(self, state: Table) -> int | None:
        """Returns the last batch of this consumer in a state."""

    def check(self, table: Table) -> list[str]:
        """Refuses a table that is not this replica, or is one of another incarnation."""
        self._replica.check(self._sink.properties_of(table))
        self.check_incarnation(table)
        return []

    def check_foreign(self, table: Table) -> None:
        """Raises `ReplicaChanged` if a copy would replace another program's rows in a table."""
        version, record = self._replica.last_change(table)
        if record is None and version is not None and version != self.foreign:
            raise ReplicaChanged(self._replica.source.name, version)

    def published(self, state: Table) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table.

        Raises:
            InvalidArgument: if the table has a later batch, or changes would be merged into another
                copy than the one they follow, or a copy would replace another program's rows.
        """
        with self._sink.errors(self.batch):
            if self.changes is None:
                self.check_foreign(state)
            elif not self._follows(state):
                raise InvalidArgument(
                    f"{self._sink.name} was written to in between, or is new",
                    "Run the batch again: it uses the table in its new state.",
                )
            stored = self.last_batch(state)
            if stored is None or stored < self.batch.batch_id:
                return None
            for version, record in self.records(state):
                if record["app_id"] == self._app_id:
                    if record["batch_id"] == self.batch.batch_id:
                        self.version, self._is_again = version, True
                        return WriteAttempt(record["epoch"], record["attempt"])
                    break
        raise InvalidArgument(
            f"{self._sink.name} has batch {stored} of {self.batch.queue}/{self.batch.consumer}, "
            f"which comes after {self.batch}",
            "The database went back in time: replicate to another place.",
        )

    def replace(self, state: Table) -> bool:
        """Commits the changes; rows that an earlier attempt appended are already in the table."""
        is_append = self.changes is not None and not self._row_key
        if is_append and self.published(state) is not None:
            return True
        is_done = super().replace(state)
        if self._is_again:
            self.grew_by = None
        return is_done

    def _follows(self, state: Table) -> bool:
        """Returns whether the changes fit the replica in this state."""
        _, record = self._replica.last_change(state)
        if record is None:  # Another program wrote last, or the table is empty.
            return False
        if self.repairs is not None and record["attempt"] != self.attempt.id:
            return bool(record["attempt"] == self.repairs.attempt)
        return bool(record["copied"] == self._copied)
