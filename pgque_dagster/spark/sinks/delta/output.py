"""Publishes the files of an attempt in a Delta table by one commit, as `publication.py` demands.

A commit creates the next file of the table's log, unless that exists: so it succeeds only on the
version that was read before the lease was renewed. `max_commit_retries=0` keeps Delta's library
from repeating it on a newer version by itself.

Each commit has an application transaction for its batch, whose version is the epoch. So versions
need not grow from batch to batch, and several batches may be stored at once. The rows of an earlier
attempt are those with the id of the batch in the column `batch_id`. Their files have no other rows,
unless somebody compacted them: then they are deleted by a commit of their own before.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ....client import Batch, InvalidArgument, PgqueError
from ..files.data_files import DataFile
from ..files.statistics import check_required
from ..files.storage import Storage, StorageFailed, needing_extra, way_out
from ..modes import BATCH_ID, SchemaEvolution
from ..publication import BatchIdentity, WriteAttempt
from ..tables import (
    INCARNATION,
    check_incarnation_of,
    check_same,
)
from .merge import merge
from .schema import added_fields, delta_statistics, required_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable

_RECORD = "pgque"
_MAPPING = "delta.columnMapping.mode"
_APPEND_ONLY = "delta.appendOnly"
# Features of tables that rows from here neither use nor break. The others, such as generated
# columns, are kept by their own engines only.
_KEPT_FEATURES = frozenset(
    (
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    )
)


@dataclass(frozen=True)
class DeltaTarget:
    """A Delta table and how batches get into it."""

    storage: Storage
    mode: str
    key: tuple[str, ...]
    evolution: SchemaEvolution

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Delta table {self.storage.location}"

    def load(self) -> "DeltaTable":
        """Loads the newest version of the table.

        Raises:
            TableNotFoundError: if there is none.
        """
        with needing_extra("delta"):
            from deltalake import DeltaTable
        return DeltaTable(self.storage.location, storage_options=self.storage.delta_options())

    @contextmanager
    def errors(self, batch: BatchIdentity) -> Iterator[None]:
        """Raises `StorageFailed` for an error of Delta's library, naming table and batch."""
        with needing_extra("delta"):
            from deltalake.exceptions import DeltaError, TableNotFoundError
        try:
            yield
        except PgqueError:
            raise
        except TableNotFoundError:
            raise StorageFailed(
                f"{self.name} was deleted while {batch} was written",
                "Run the batch again: the next attempt creates the table.",
            ) from None
        except (DeltaError, OSError) as error:
            told = self.storage.without_secrets(error)
            raise StorageFailed(
                f"{self.name} did not take {batch}: {told}", way_out(told)
            ) from None


class DeltaOutput:
    """The files of an attempt, to be published in a Delta table.

    Args:
        target: the table.
        claim: the claim of the batch.
        batch: its identity.
        attempt: this attempt.
        fields: the columns of the files, as Delta's JSON has them.
    """

    def __init__(
        self,
        target: DeltaTarget,
        claim: Batch,
        batch: BatchIdentity,
        attempt: WriteAttempt,
        fields: Sequence[dict[str, Any]],
    ) -> None:
        self.attempt = attempt
        self.files: list[DataFile] = []
        self.version = -1
        self._table_id: object = None
        self._target = target
        self._claim = claim
        self._batch = batch
        self._fields = fields
        self._app_id = f"pgque/{batch.incarnation}/{batch.queue}/{batch.consumer}/{batch.batch_id}"

    def read(self) -> "DeltaTable":
        """Loads the newest version of the table."""
        with self._target.errors(self._batch):
            return self._target.load()

    def published(self, state: "DeltaTable") -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
        with self._target.errors(self._batch):
            epoch = state.transaction_version(self._app_id)
            if epoch is None:
                return None
            if epoch == self.attempt.epoch:
                for commit in state.history():
                    record = commit.get(_RECORD) or {}
                    if record.get("app_id") == self._app_id:
                        self.version = int(commit["version"])
                        return WriteAttempt(epoch, str(record.get("attempt")))
        return WriteAttempt(epoch, "")

    def replace(self, state: "DeltaTable") -> bool:
        """Commits the rows in place of those that the table has of the batch."""
        from deltalake.exceptions import CommitFailedError

        with self._target.errors(self._batch):
            try:
                done = self._commit(state)
            except CommitFailedError:
                if self._target.load().version() == state.version():
                    raise
                return False
            if done:
                self.version = state.version() + 1
            return done

    def begin(self, table: "DeltaTable") -> None:
        """Checks before anything is written that the table fits; it must not be replaced later.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        self._table_id = table.metadata().id
        self.check(table)

    def check(self, table: "DeltaTable") -> list[dict[str, Any]]:
        """Returns the columns that the table lacks.

        Raises:
            InvalidArgument: if the table cannot take the rows, or is of another incarnation.
        """
        name = self._target.name
        configuration = table.metadata().configuration
        incarnation = self._batch.incarnation
        check_incarnation_of(
            name,
            configuration.get(INCARNATION),
            self._claim,
            incarnation,
            f"DeltaTable('{self._target.storage.location}').alter.set_table_properties("
            f"{{'{INCARNATION}': '{incarnation}'}}, raise_if_not_exists=False).",
        )
        if columns := table.metadata().partition_columns:
            raise InvalidArgument(
                f"{name} is partitioned by {', '.join(columns)}, and this sink does not partition",
                "Store into a table without partitions: readers skip files by their statistics. To "
                "fill this one, copy the rows into it by an engine that writes partitions.",
            )
        features = set(table.protocol().writer_features or ()) - _KEPT_FEATURES
        stored: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
        rules = [
            *sorted(features),
            *(key for key in configuration if key.startswith("delta.constraints.")),
            *(key for key in (_MAPPING,) if configuration.get(key, "none") != "none"),
            # A second attempt at a batch replaces the files of the first one.
            *(key for key in (_APPEND_ONLY,) if configuration.get(key, "false") != "false"),
            *(key for field in stored for key in field["metadata"] if key.startswith("delta.")),
        ]
        if rules:
            raise InvalidArgument(
                f"{name} has {', '.join(rules)}, which this sink does not keep",
                "Store into another table, and copy the rows from there by an engine that does.",
            )
        check_required(name, required_columns(stored), self.files)
        return added_fields(name, stored, self._fields, self._target.evolution)

    def _commit(self, table: "DeltaTable") -> bool:
        from deltalake import CommitProperties, Schema

        # The commit itself cannot demand it: the number of the version is all that it compares.
        for each in (table, self._target.load()):
            check_same(self._target.name, self._batch, self._table_id, each.metadata().id)
        added = self.check(table)
        alone = CommitProperties(max_commit_retries=0)
        if added:
            fields = Schema.from_json(json.dumps({"type": "struct", "fields": added})).fields
            table.alter.add_columns(fields, commit_properties=alone)
            return False
        if self._target.mode != "append":
            merge(
                table,
                self._target.storage,
                self.files,
                self._target.key,
                replace=self._target.mode == "replace",
                properties=self._properties(),
            )
            return True
        own, has_more = self._earlier_files(table)
        if has_more and table.transaction_version(self._app_id) is not None:
            # The files of the earlier attempt were compacted with those of other batches.
            deleted = table.delete(f"{BATCH_ID} = {self._batch.batch_id}", commit_properties=alone)
            if deleted["num_deleted_rows"]:
                return False
        self._append(table, own)
        return True

    def _append(self, table: "DeltaTable", earlier: Sequence[tuple[str, int]]) -> None:
        from deltalake.transaction import AddAction, RemoveAction

        now = int(time.time() * 1000)
        table.create_write_transaction(
            [
                *(RemoveAction(path, True, now, size, {}) for path, size in earlier),
                *(
                    AddAction(file.path, file.size, {}, now, True, delta_statistics(file))
                    for file in self.files
                ),
            ],
            "append",
            table.schema(),
            commit_properties=self._properties(),
        )

    def _properties(self) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={
                _RECORD: {
                    "app_id": self._app_id,
                    "epoch": self.attempt.epoch,
                    "attempt": self.attempt.id,
                }
            },
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, self.attempt.epoch)],
        )

    def _earlier_files(self, table: "DeltaTable") -> tuple[list[tuple[str, int]], bool]:
        """Returns the files with rows of this batch only, and whether others may have some, too."""
        files = pa.table(table.get_add_actions(flatten=True))
        if not files.num_rows:
            return [], False
        if f"min.{BATCH_ID}" not in files.column_names:
            return [], True
        low, high = files[f"min.{BATCH_ID}"], files[f"max.{BATCH_ID}"]
        batch_id = self._batch.batch_id
        only = pc.and_(pc.equal(low, batch_id), pc.equal(high, batch_id))
        some = pc.and_(pc.less_equal(low, batch_id), pc.greater_equal(high, batch_id))
        only, some = pc.fill_null(only, False), pc.fill_null(some, True)
        own = files.filter(only)
        others = pc.any(pc.and_not(some, only)).as_py()
        paths, sizes = own["path"].to_pylist(), own["size_bytes"].to_pylist()
        return list(zip(paths, sizes, strict=True)), bool(others)
