"""Publishes the files of an attempt in a Delta table by one commit, as `publication.py` demands.

A commit creates the next file of the table's log, unless that exists: so it succeeds only on the
version that was read before the lease was renewed. `max_commit_retries=0` keeps Delta's library
from repeating it on a newer version by itself.

Each commit has an application transaction for its batch, whose version is the epoch. So versions
need not grow from batch to batch, and several batches may be stored at once. The rows of an earlier
attempt are those with the id of the batch in the column `batch_id`. Their files have no other rows,
unless somebody compacted them: then they are deleted by a commit of their own before.

The commit of a vector has an application transaction for each member instead, whose version is the
vector's id. There are no rows of an earlier attempt.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from ....client.read_batch import ReadBatch
from ....client.vector import Vector
from ..files.storage import Storage
from ..modes import BATCH_ID
from ..publication import WriteAttempt
from ..tables import TableOutput, TableSink
from .merge import Rows, check_keys, merge
from .schema import delta_fields, delta_schema, delta_statistics, spark_columns, stored_fields

_RECORD = "pgque"
_MAPPING = "delta.columnMapping.mode"
_APPEND_ONLY = "delta.appendOnly"
# Features of tables that rows from here neither use nor break. The others, such as generated
# columns, are kept by their own engines only.
_KEPT_FEATURES = """
appendOnly changeDataFeed checkConstraints deletionVectors domainMetadata invariants
timestampNtz v2Checkpoint vacuumProtocolCheck
"""


class DeltaOutput(TableOutput[DeltaTable]):
    """The files of an attempt, to be published in a Delta table.

    Args:
        sink: the table.
        claim: the claim of the batch.
        schema: the columns of the files.
        key: the columns by which rows are replaced; empty if rows are only added.
    """

    conflict = CommitFailedError

    def __init__(
        self, sink: TableSink, claim: ReadBatch, schema: StructType, key: Sequence[str]
    ) -> None:
        self.fields = delta_fields(schema)
        super().__init__(sink, claim, schema)
        self._key = key
        self._app_id = f"pgque/{self.batch.record}"

    def load(self) -> DeltaTable:
        """Loads the newest version of the table."""
        return load_table(self.storage)

    def create(self) -> DeltaTable:
        """Creates the table, or loads the one that another attempt created at the same time."""
        if not self.storage.is_url:
            Path(self.storage.location).mkdir(parents=True, exist_ok=True)
        try:
            return DeltaTable.create(
                self.storage.location,
                schema=delta_schema(self.fields),
                mode="error",
                configuration=self.properties,
                storage_options=self.storage.delta_options(),
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            with suppress(TableNotFoundError):
                return self.load()
            raise

    def identity(self, table: DeltaTable) -> tuple[object, object]:
        """Returns the table's id, and the number of the version."""
        return table.metadata().id, table.version()

    def published_batch(self, state: DeltaTable) -> WriteAttempt | None:
        """Returns the attempt at this batch whose commit is in a version of the table."""
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

    def version_of(self, state: DeltaTable) -> int:
        """Returns the number of the version."""
        return state.version()

    def check_files(self) -> None:
        """Checks the keys of the rows before they are merged."""
        if self._key:
            with self._sink.errors(self.batch):
                check_keys(self._sink.name, Rows(self.storage, self.files), self._key)

    def columns(self, table: DeltaTable) -> StructType:
        """Returns the columns of the table."""
        return spark_columns(table)

    def rules(self, table: DeltaTable) -> list[str]:
        """Returns what rows from here may break in the table."""
        configuration, stored = table.metadata().configuration, stored_fields(table)
        return [
            *(f"partitions by {name}" for name in table.metadata().partition_columns),
            *(f"NOT NULL for {x['name']}" for x in stored if not x["nullable"]),
            *sorted(set(table.protocol().writer_features or ()) - set(_KEPT_FEATURES.split())),
            *(key for key in configuration if key.startswith("delta.constraints.")),
            *(key for key in (_MAPPING,) if configuration.get(key, "none") != "none"),
            # A second attempt at a batch replaces the files of the first one.
            *(key for key in (_APPEND_ONLY,) if configuration.get(key, "false") != "false"),
            *(key for field in stored for key in field["metadata"] if key.startswith("delta.")),
        ]

    def commit(self, state: DeltaTable) -> bool:
        """Commits the rows, or first what has to be committed before them."""
        # The commit itself cannot demand it: the number of the version is all that it compares.
        for each in (state, self.load()):
            self.check_same(each)
        newest = state.version()
        names = self.check(state)
        added = [field for field in self.fields if field["name"] in names]
        alone = CommitProperties(max_commit_retries=0)
        if added:
            state.alter.add_columns(delta_schema(added).fields, commit_properties=alone)
            return False
        known, wanted = self._sink.properties_of(state), self.properties
        if new := {key: value for key, value in wanted.items() if not known.get(key)}:
            # Of shards that were added.
            state.alter.set_table_properties(new, False, commit_properties=alone)
            return False
        if self._key:
            merge(state, Rows(self.storage, self.files), self._key, self._properties())
        else:
            own, has_more = self._earlier_files(state)
            if has_more and state.transaction_version(self._app_id) is not None:
                # The files of the earlier attempt were compacted with those of other batches.
                mine = f"{BATCH_ID} = {self.batch.batch_id}"
                if state.delete(mine, commit_properties=alone)["num_deleted_rows"]:
                    return False
            removed = [RemoveAction(path, True, _now(), size, {}) for path, size in own]
            state.create_write_transaction(
                [*removed, *self.added()],
                "append",
                state.schema(),
                commit_properties=self._properties(),
            )
        self.version = newest + 1
        return True

    def added(self) -> list[AddAction | RemoveAction]:
        """Returns the actions that add the files to the table."""
        now = _now()
        return [
            AddAction(file.path, file.size, {}, now, True, delta_statistics(file))
            for file in self.files
        ]

    def _properties(self) -> Any:
        epoch, attempt = self.attempt.epoch, self.attempt.id
        record = {"app_id": self._app_id, "epoch": epoch, "attempt": attempt}
        claim, versions = self._claim, {self._app_id: epoch}
        if isinstance(claim, Vector):
            versions = {app_id(claim, shard): claim.batch_id for shard in claim.members}
        return CommitProperties(
            custom_metadata={_RECORD: record},
            max_commit_retries=0,
            app_transactions=list(starmap(Transaction, versions.items())),
        )

    def _earlier_files(self, table: DeltaTable) -> tuple[list[tuple[str, int]], bool]:
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


def app_id(claim: Vector, shard: str) -> str:
    """Returns the name of the application transaction of a member of a vector."""
    return f"pgque/{claim.record_of(shard)}"


def load_table(storage: Storage) -> DeltaTable:
    """Loads the newest version of a table."""
    return DeltaTable(storage.location, storage_options=storage.delta_options())


def _now() -> int:
    return int(time.time() * 1000)
