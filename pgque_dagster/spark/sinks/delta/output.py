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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ....client.read_batch import ReadBatch
from ..files.storage import needing_extra
from ..modes import BATCH_ID
from ..publication import BatchIdentity, WriteAttempt
from ..tables import INCARNATION, TableFacts, TableOutput, TableTarget
from .merge import check_keys, merge
from .schema import delta_statistics, kinds

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
class DeltaTarget(TableTarget):
    """A Delta table and how batches get into it."""

    mode: str
    key: tuple[str, ...]
    extra = "delta"
    libraries = ("deltalake", "_internal")

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Delta table {self.storage.location}"

    @property
    def not_found(self) -> type[Exception]:
        """The error for a table that is missing."""
        from deltalake.exceptions import TableNotFoundError

        return TableNotFoundError

    def load(self) -> "DeltaTable":
        """Loads the newest version of the table.

        Raises:
            TableNotFoundError: if there is none.
        """
        with needing_extra("delta"):
            from deltalake import DeltaTable
        return DeltaTable(self.storage.location, storage_options=self.storage.delta_options())


class DeltaOutput(TableOutput["DeltaTable"]):
    """The files of an attempt, to be published in a Delta table.

    Args:
        target: the table.
        claim: the claim of the batch.
        batch: its identity.
        fields: the columns of the files, as Delta's JSON has them.
    """

    _target: DeltaTarget

    def __init__(
        self,
        target: DeltaTarget,
        claim: ReadBatch,
        batch: BatchIdentity,
        fields: Sequence[dict[str, Any]],
    ) -> None:
        super().__init__(target, claim, batch, kinds(fields))
        self._fields = fields
        self._app_id = f"pgque/{batch.record}"

    @property
    def conflict(self) -> type[Exception]:
        """The error for a commit on a version that is not the newest."""
        from deltalake.exceptions import CommitFailedError

        return CommitFailedError

    def load(self) -> "DeltaTable":
        """Loads the newest version of the table."""
        return self._target.load()

    def identity(self, table: "DeltaTable") -> tuple[object, object]:
        """Returns the table's id, and the number of the version."""
        return table.metadata().id, table.version()

    def published(self, state: "DeltaTable") -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
        with self._target.errors(self.batch):
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

    def check_files(self) -> None:
        """Checks the keys of the rows before they are merged."""
        if self._target.mode != "append":
            with self._target.errors(self.batch):
                check_keys(
                    self._target.name,
                    self._target.storage,
                    self.files,
                    self._target.key,
                    unique=self._target.mode == "upsert",
                )

    def facts(self, table: "DeltaTable") -> TableFacts:
        """Returns what the rows are compared with."""
        configuration = table.metadata().configuration
        stored: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
        return TableFacts(
            incarnation=configuration.get(INCARNATION),
            adopt=f"DeltaTable('{self._target.storage.location}').alter.set_table_properties("
            f"{{'{INCARNATION}': '{self.batch.incarnation}'}}, raise_if_not_exists=False).",
            columns=kinds(stored),
            required=[field["name"] for field in stored if not field["nullable"]],
            rules=self._rules(table, configuration, stored),
        )

    def _rules(
        self,
        table: "DeltaTable",
        configuration: dict[str, str],
        stored: Sequence[dict[str, Any]],
    ) -> list[str]:
        features = set(table.protocol().writer_features or ()) - _KEPT_FEATURES
        return [
            *(f"partitions by {name}" for name in table.metadata().partition_columns),
            *sorted(features),
            *(key for key in configuration if key.startswith("delta.constraints.")),
            *(key for key in (_MAPPING,) if configuration.get(key, "none") != "none"),
            # A second attempt at a batch replaces the files of the first one.
            *(key for key in (_APPEND_ONLY,) if configuration.get(key, "false") != "false"),
            *(key for field in stored for key in field["metadata"] if key.startswith("delta.")),
        ]

    def commit(self, state: "DeltaTable") -> bool:
        """Commits the rows, or first what has to be committed before them."""
        from deltalake import CommitProperties, Schema

        # The commit itself cannot demand it: the number of the version is all that it compares.
        for each in (state, self.load()):
            self.check_same(each)
        newest = state.version()
        names = self.check(state)
        added = [field for field in self._fields if field["name"] in names]
        alone = CommitProperties(max_commit_retries=0)
        if added:
            fields = Schema.from_json(json.dumps({"type": "struct", "fields": added})).fields
            state.alter.add_columns(fields, commit_properties=alone)
            return False
        if self._target.mode != "append":
            merge(
                state,
                self._target.storage,
                self.files,
                self._target.key,
                replace=self._target.mode == "replace",
                properties=self._properties(),
            )
        else:
            own, has_more = self._earlier_files(state)
            if has_more and state.transaction_version(self._app_id) is not None:
                # The files of the earlier attempt were compacted with those of other batches.
                rows = f"{BATCH_ID} = {self.batch.batch_id}"
                if state.delete(rows, commit_properties=alone)["num_deleted_rows"]:
                    return False
            self._append(state, own)
        self.version = newest + 1
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
        batch_id = self.batch.batch_id
        only = pc.and_(pc.equal(low, batch_id), pc.equal(high, batch_id))
        some = pc.and_(pc.less_equal(low, batch_id), pc.greater_equal(high, batch_id))
        only, some = pc.fill_null(only, False), pc.fill_null(some, True)
        own = files.filter(only)
        others = pc.any(pc.and_not(some, only)).as_py()
        paths, sizes = own["path"].to_pylist(), own["size_bytes"].to_pylist()
        return list(zip(paths, sizes, strict=True)), bool(others)
