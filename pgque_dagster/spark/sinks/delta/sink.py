"""Stores batches in a Delta table. It needs no jar."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from ....client import InvalidArgument
from ....client.ranges import count_problem
from ...batch import SparkBatch
from ..files.data_files import with_batch_id
from ..files.file_reader import ListedFile, read_table_files
from ..files.storage import Storage
from ..modes import (
    DeltaMode,
    SchemaEvolution,
    check_evolution,
    check_mode,
    check_retention,
    refuse_window,
)
from ..publication import BatchIdentity
from ..tables import (
    INCARNATION,
    WRITTEN,
    StoredBatch,
)
from .merge import RESERVED
from .output import DeltaOutput, DeltaTarget
from .schema import delta_fields

if TYPE_CHECKING:
    from deltalake import DeltaTable

# The files that Delta's library writes when it unites or merges files.
_BY_LIBRARY = re.compile(r"[^/]+\.parquet")


class DeltaSink:
    """A Delta table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table by one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see a batch
    whole or not at all.

    - `append` adds the rows. Another attempt at the batch replaces them in the same commit.
    - `upsert` replaces the row of each key, or inserts it. A batch that is applied again gives the
      same rows, if it has the same keys. Rows that only an earlier attempt had, remain.
    - `replace` deletes all rows of the keys that the batch has, and inserts its rows. A batch that
      is applied again gives the same rows, if it has the same keys.

    For `upsert` and `replace`, Delta's library reads the rows and rewrites the files that hold
    their keys, in the driver's process. If two batches with the same keys are worked on at once,
    the one that is committed last wins.

    A table belongs to one incarnation of a database, as for `ParquetSink`. It is created by the
    first write. Rows of an attempt that was not acked remain if no later attempt stores the batch.

    Args:
        location: a directory that driver and executors share, or a URL such as
            `s3://bucket/table`.
        mode: `append`, `upsert` or `replace`.
        key: the columns of the key, for `upsert` and `replace`.
        schema_evolution: `fail` refuses a DataFrame with other columns than the table; with
            `add_columns`, the table gets columns that it lacks, and columns that the DataFrame
            lacks are null.
        storage_options: credentials and the like for a URL, as Delta's library names them, such as
            `aws_access_key_id`. By default, each process takes them from its environment, such as
            AWS_ACCESS_KEY_ID.

    Raises:
        InvalidArgument: if the mode needs a key and there is none, or the reverse, or if nothing
            here can open the URL or the path.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        mode: DeltaMode = "append",
        key: Sequence[str] = (),
        schema_evolution: SchemaEvolution = "fail",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        check_mode(mode, key)
        check_evolution(schema_evolution)
        self._storage = Storage.of(location, storage_options)
        if not self._storage.is_url and set(self._storage.location) & {"%", "\\"}:
            raise InvalidArgument(
                f"the path {self._storage.location} has % or \\ in it, and Delta's library looks "
                "for it elsewhere",
                "Use a path without these characters.",
            )
        self._target = DeltaTarget(self._storage, schema_evolution, mode, tuple(key))

    @property
    def location(self) -> str:
        """Where the table is."""
        return self._storage.location

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
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            StorageFailed: if the files or the table cannot be written. The batch stays open.
        """
        claim = batch.claim
        merged = self._target.mode != "append"
        if merged:
            refuse_window(claim, f"mode {self._target.mode} of {self._target.name}")
        fields = delta_fields(with_batch_id(frame.schema))
        output = DeltaOutput(self._target, claim, BatchIdentity.of(claim), fields)
        self._check_key(frame)
        with self._target.errors(output.batch):
            try:
                table = self._target.load()
            except self._target.not_found:
                table = self._create(output.batch, fields)
            output.begin(table)
        stored = output.store(batch, frame, self._storage)
        if merged:
            output.remove_files(self._storage)
        return stored

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns the table's newest version, which executors read in parallel.

        Raises:
            InvalidArgument: if there is no table, or it needs another reader.
        """
        table = self._load()
        readers = set(table.protocol().reader_features or ()) - {"timestampNtz", "v2Checkpoint"}
        if readers or table.metadata().partition_columns:
            needed = ", ".join(sorted(readers)) or "partitions"
            raise InvalidArgument(
                f"{self._target.name} needs a reader that knows {needed}",
                "Read it by deltalake, or by Spark with the jars of Delta.",
            )
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        listed = [ListedFile(unquote(file["path"]), file["size_bytes"]) for file in files]
        return read_table_files(spark, self._storage, listed, schema)

    def optimize(self, *, target_file_bytes: int = 128 * 2**20) -> dict[str, Any]:
        """Unites small files.

        Args:
            target_file_bytes: the size of the new files.

        Returns:
            The metrics of Delta's library.

        Raises:
            InvalidArgument: if there is no table, or `target_file_bytes` is no number above 0.
        """
        if problem := count_problem("target_file_bytes", target_file_bytes, at_most=2**63 - 1):
            raise InvalidArgument(problem, "Pass a number of bytes, such as 128 * 2**20.")
        return self._load().optimize.compact(target_size=target_file_bytes)

    def vacuum(
        self, *, retention: timedelta = timedelta(days=7), dry_run: bool = False
    ) -> list[str]:
        """Deletes files that the table does not refer to, such as those of killed attempts.

        Those are the files that were removed from the table, and files with the names that attempts
        and Delta's library give. Other files remain, because the table may be in the folder of
        another one: as `sales/revenue` is in that of `sales`.

        Args:
            retention: how old they must be: longer than any attempt and any reader takes.
            dry_run: whether to list the files only.

        Returns:
            The paths of the files.

        Raises:
            InvalidArgument: if there is no table, or the retention is under a day.
            StorageFailed: if files cannot be removed.
        """
        check_retention(retention)
        table = self._load()

        def unused(*, full: bool) -> list[str]:
            return table.vacuum(
                retention_hours=int(retention.total_seconds() // 3600),
                dry_run=True,
                enforce_retention_duration=False,
                full=full,
            )

        # A full vacuum deletes whatever is in the folder, also other tables.
        left = [path for path in unused(full=True) if _is_written(path)]
        paths = sorted({*unused(full=False), *left})
        if not dry_run:
            self._storage.remove(paths)
        return paths

    def _load(self) -> "DeltaTable":
        with self._target.existing():
            return self._target.load()

    def _create(self, batch: BatchIdentity, fields: list[dict[str, Any]]) -> "DeltaTable":
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if not self._storage.is_url:
            Path(self._storage.location).mkdir(parents=True, exist_ok=True)
        try:
            return DeltaTable.create(
                self._storage.location,
                schema=Schema.from_json(json.dumps({"type": "struct", "fields": fields})),
                mode="error",
                configuration={INCARNATION: batch.incarnation},
                storage_options=self._storage.delta_options(),
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            # Another attempt may have created it at the same time.
            with suppress(TableNotFoundError):
                return self._target.load()
            raise

    def _check_key(self, frame: DataFrame) -> None:
        missing = [name for name in self._target.key if name not in frame.columns]
        if missing:
            raise InvalidArgument(
                f"the DataFrame has no column {', '.join(missing)}, which is part of the key of "
                f"{self._target.name}",
                f"It has: {', '.join(frame.columns)}.",
            )
        reserved = [name for name in frame.columns if name.startswith(RESERVED)]
        if reserved and self._target.key:
            raise InvalidArgument(
                f"the column {reserved[0]} has a name that merges into {self._target.name} use",
                "Give it another name: withColumnRenamed().",
            )
        nested = [
            name
            for name in self._target.key
            if isinstance(frame.schema[name].dataType, ArrayType | MapType | StructType)
        ]
        if nested:
            raise InvalidArgument(
                f"the key of {self._target.name} has the column {', '.join(nested)}, whose values "
                "have parts",
                "Use columns of plain types, such as one of the parts.",
            )


def _is_written(path: str) -> bool:
    """Says whether an attempt or Delta's library gave a file its name."""
    return bool(WRITTEN.fullmatch(path) or _BY_LIBRARY.fullmatch(path))
