"""Publishes the files of an attempt in a Delta table in one commit, as `publication.py` demands.

A commit creates the next file of the table's log, unless that exists, so it succeeds only on the
version that was read before the lease was renewed. `max_commit_retries=0` keeps Delta's library
from retrying on a newer version.

Each commit has an application transaction for its batch, whose version is the epoch. So versions
need not grow from batch to batch, and several batches may be stored at once. The rows of an earlier
attempt are found by the batch's id in the column `batch_id`. Their files have no other rows, unless
they were compacted: then a separate commit deletes these rows first.

The commit of a vector has an application transaction for each member, whose version is the vector's
id. There are no rows of an earlier attempt.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from ....client.read_batch import ReadBatch
from ..files.data_files import DataFile
from ..files.storage import Storage
from ..lake_table import LakeTable
from ..modes import BATCH_ID
from ..publication import WriteAttempt
from ..table_output import TableOutput
from .log import Action, create, has_vectors, information, stored_files, uses_vectors
from .merge import Rows, merge
from .replacing import replace_rows
from .schema import delta_fields, delta_schema, delta_statistics, spark_columns, stored_fields

RECORD = "pgque"
MAPPING = "delta.columnMapping.mode"
_APPEND_ONLY = "delta.appendOnly"
_CHANGE_FEED = "delta.enableChangeDataFeed"
# Table features that rows from here neither use nor break. Other features, such as generated
# columns, only work with their own engines.
KEPT_FEATURES = """
appendOnly changeDataFeed checkConstraints deletionVectors domainMetadata invariants
timestampNtz v2Checkpoint vacuumProtocolCheck variantType
"""


class DeltaOutput(TableOutput[DeltaTable]):
    """The files of an attempt, to be published in a Delta table.

    Attributes:
        is_merged: whether Delta's library has rewritten files to merge the rows.
    """

    conflict = CommitFailedError

    def __init__(
        self,
        sink: LakeTable,
        claim: ReadBatch,
        schema: StructType,
        key: Sequence[str] = (),
        *,
        deletion_vectors: bool = False,
    ) -> None:
        self.fields = delta_fields(schema)
        self._has_vectors = deletion_vectors
        self.is_merged = False
        super().__init__(sink, claim, schema, key)
        self._app_id = app_id(claim)

    def load(self) -> DeltaTable:
        """Loads the newest version of the table."""
        return load_table(self.storage)

    def create(self) -> DeltaTable:
        """Creates the table, or loads the one that another attempt created at the same time."""
        if not self.storage.is_url:
            Path(self.storage.location).mkdir(parents=True, exist_ok=True)
        if self._has_vectors:
            create(self.storage, self.fields, self.properties)
            return self.load()
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

    def attempts_in(self, state: DeltaTable) -> Iterator[tuple[int, str, WriteAttempt]]:
        """Yields version, record and attempt of the commits up to a version, the newest first."""
        for commit in state.history():
            if record := commit.get(RECORD):
                attempt = WriteAttempt(record["epoch"], record["attempt"])
                yield int(commit["version"]), record["app_id"].removeprefix("pgque/"), attempt

    def columns(self, table: DeltaTable) -> StructType:
        """Returns the columns of the table."""
        return spark_columns(table)

    def rules(self, table: DeltaTable) -> list[str]:
        """Returns the rules of the table that rows from here may break."""
        configuration, stored = table.metadata().configuration, stored_fields(table)
        return [
            *(f"partitions by {name}" for name in table.metadata().partition_columns),
            *(f"NOT NULL for {x['name']}" for x in stored if not x["nullable"]),
            *sorted(set(table.protocol().writer_features or ()) - set(KEPT_FEATURES.split())),
            *(key for key in configuration if key.startswith("delta.constraints.")),
            *(key for key in (MAPPING,) if configuration.get(key, "none") != "none"),
            # A second attempt at a batch replaces the files of the first one.
            *(key for key in (_APPEND_ONLY,) if configuration.get(key, "false") != "false"),
            *(key for field in stored for key in field["metadata"] if key.startswith("delta.")),
        ]

    def deletes_by_vectors(self, table: DeltaTable) -> bool:
        """Returns whether rows of the table are deleted by vectors.

        Otherwise Delta's library merges, which also obeys the table's rules, or refuses them.
        """
        feed = table.metadata().configuration.get(_CHANGE_FEED, "false") != "false"
        return uses_vectors(table) and not feed and not self.rules(table)

    def commit(self, state: DeltaTable) -> bool:
        """Commits the rows, or first a change that has to come before them."""
        # The commit itself cannot check this: it only compares the number of the version.
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
            # The properties of shards that were added.
            state.alter.set_table_properties(new, False, commit_properties=alone)
            return False
        self.is_merged = bool(self._key) and not self.deletes_by_vectors(state)
        if self._key and not self.is_merged:
            self.replace_rows(state, self._key, self.files, self._record(), self._transactions())
        elif self._key:
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

    def replace_rows(
        self,
        state: DeltaTable,
        key: Sequence[str],
        keys: Sequence[DataFile],
        record: dict[str, Any],
        transactions: dict[str, int],
    ) -> int:
        """Commits the rows by deletion vectors. Returns by how many rows the table grows.

        Args:
            state: the version that must still be the newest.
            key: the columns of the key.
            keys: the files of the keys.
            record: the record of the commit.
            transactions: its application transactions, each with a version.
        """
        actions = self.first_actions("MERGE", record, transactions)
        batch, storage = self._spark_batch, self.storage
        with self.in_tasks(batch):
            return replace_rows(batch.spark, storage, state, key, self.files, keys, actions)

    @staticmethod
    def first_actions(
        operation: str, record: dict[str, Any], transactions: dict[str, int]
    ) -> list[Action]:
        """Returns the first actions of a commit; arguments are as for `replace_rows`."""
        return [
            information(operation, **{RECORD: record}),
            *({"txn": {"appId": name, "version": x}} for name, x in transactions.items()),
        ]

    def _record(self) -> dict[str, Any]:
        epoch, attempt = self.attempt.epoch, self.attempt.id
        return {"app_id": self._app_id, "epoch": epoch, "attempt": attempt}

    def _transactions(self) -> dict[str, int]:
        return {app_id(member): self.attempt.epoch for member in self.batch.members.values()}

    def _properties(self) -> Any:
        return CommitProperties(
            custom_metadata={RECORD: self._record()},
            max_commit_retries=0,
            app_transactions=[Transaction(*each) for each in self._transactions().items()],
        )

    def _earlier_files(self, table: DeltaTable) -> tuple[list[tuple[str, int]], bool]:
        """Returns files with only this batch's rows, and whether other files may have some, too."""
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
        if has_vectors(table):
            # Delta's library has no action to remove a file together with its vector.
            stored = stored_files(self.storage, table.version())
            with_vector = pa.array([x.action["path"] for x in stored if x.vector], pa.string())
            only = pc.and_not(only, pc.is_in(files["path"], with_vector))
        own = files.filter(only)
        others = pc.any(pc.and_not(some, only)).as_py()
        paths, sizes = own["path"].to_pylist(), own["size_bytes"].to_pylist()
        return list(zip(paths, sizes, strict=True)), bool(others)


def app_id(claim: ReadBatch) -> str:
    """Returns the name of the application transaction of a claim, or of a member of a vector."""
    return f"pgque/{claim.record}"


def load_table(storage: Storage) -> DeltaTable:
    """Loads the newest version of a table."""
    return DeltaTable(storage.location, storage_options=storage.delta_options())


def _now() -> int:
    return int(time.time() * 1000)
