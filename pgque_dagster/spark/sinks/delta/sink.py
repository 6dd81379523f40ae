"""Stores batches in a Delta table. It needs no jar."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from ....client import InvalidArgument
from ....client.vector import Vector
from ...batch import SparkBatch
from ..files.file_reader import ListedFile, read_table_files
from ..files.storage import Storage
from ..modes import (
    TARGET_FILE_BYTES,
    DeltaMode,
    Maintained,
    SchemaEvolution,
    check_mode,
    check_retention,
    refuse_window,
)
from ..tables import WRITTEN, TableSink
from ..vectors import Stored
from .merge import RESERVED
from .output import DeltaOutput, app_id, load_table
from .schema import spark_columns

# The files that Delta's library writes when it unites or merges files.
_BY_LIBRARY = re.compile(r"[^/]+\.parquet")
_WITH_PARTS = (ArrayType, MapType, StructType)
# How often files are united again because writers replaced one of them meanwhile.
_ATTEMPTS = 5


class DeltaSink(TableSink):
    """A Delta table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table by one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see a batch
    whole or not at all.

    - `append` adds the rows. Another attempt at the batch replaces them in the same commit.
    - `upsert` replaces the row of each key, or inserts it. A batch that is applied again gives the
      same rows, if it has the same keys. Rows that only an earlier attempt had, remain.

    For `upsert`, Delta's library reads the rows and rewrites the files that hold their keys, in the
    driver's process. If two batches with the same keys are worked on at once, the one that is
    committed last wins.

    The first write creates the table, which belongs to one incarnation of a database, as for
    `ParquetSink`. Rows of an attempt that was not acked remain if no later one stores the batch.

    Args:
        location: a directory that driver and executors share, or a URL such as
            `s3://bucket/table`.
        mode: `append` or `upsert`.
        key: the columns of the key, for `upsert`.
        schema_evolution: `fail` refuses a DataFrame with other columns than the table; with
            `add_columns`, the table gets columns that it lacks, and columns that the DataFrame
            lacks are null.
        storage_options: credentials and the like for a URL, as Delta's library names them, such as
            `aws_access_key_id`. By default, each process takes them from its environment, such as
            AWS_ACCESS_KEY_ID.

    Attributes:
        location: the directory or URL.

    Raises:
        InvalidArgument: if the mode needs a key and there is none, or the reverse, or if nothing
            here can open the URL or the path.
    """

    not_found = TableNotFoundError
    libraries = ("deltalake", "_internal")

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
        super().__init__(Storage.of(location, storage_options), schema_evolution)
        self.location = self.storage.location
        if not self.storage.is_url and set(self.location) & {"%", "\\"}:
            raise InvalidArgument(
                f"the path {self.location} has % or \\ in it, and Delta's library looks "
                "for it elsewhere",
                "Use a path without these characters.",
            )
        self.mode, self.key = mode, tuple(key)

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Delta table {self.location}"

    def load(self) -> DeltaTable:
        """Loads the newest version of the table.

        Raises:
            TableNotFoundError: if there is none.
        """
        return load_table(self.storage)

    @contextmanager
    def attempt(self, batch: SparkBatch, schema: StructType) -> Iterator[DeltaOutput]:
        """Begins an attempt to store a batch."""
        if self.mode != "append":
            refuse_window(batch.claim, f"mode {self.mode} of {self.name}")
        output = DeltaOutput(self, batch.claim, schema, self.key)
        self._check_key(schema)
        yield output
        if self.mode != "append":
            output.remove_files()

    @contextmanager
    def newest(self) -> Iterator[DeltaTable]:
        """Loads the newest version of the table for the block."""
        yield self.load()

    def properties_of(self, table: DeltaTable) -> Mapping[str, str]:
        """Returns the properties of the table."""
        return table.metadata().configuration

    def adopting(self, key: str, incarnation: str) -> str:
        """Returns the statement that sets a property of the table to an incarnation."""
        return (
            f"DeltaTable('{self.location}').alter.set_table_properties("
            f"{{'{key}': '{incarnation}'}}, raise_if_not_exists=False)."
        )

    def vectors_in(self, table: DeltaTable, claim: Vector) -> dict[str, Stored]:
        """Returns which vectors have members of a vector, by shard, in a version of the table."""
        versions = {
            shard: table.transaction_version(app_id(claim, shard)) for shard in claim.members
        }
        return {shard: found for shard, found in versions.items() if found is not None}

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Returns a version of the table, which executors read in parallel.

        Args:
            spark: the session.
            version: the version; None for the newest.

        Raises:
            InvalidArgument: if there is no table, or it needs another reader.
        """
        with self.existing():
            table = self.load()
        if version is not None:
            table.load_as_version(version)
        readers = set(table.protocol().reader_features or ()) - {"timestampNtz", "v2Checkpoint"}
        if readers or table.metadata().partition_columns:
            needed = ", ".join(sorted(readers)) or "partitions"
            raise InvalidArgument(
                f"{self.name} needs a reader that knows {needed}",
                "Read it by deltalake, or by Spark with the jars of Delta.",
            )
        files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        listed = [ListedFile(unquote(file["path"]), file["size_bytes"]) for file in files]
        return read_table_files(spark, self.storage, listed, spark_columns(table))

    def maintain(
        self, url: str | None = None, *, retention: timedelta = timedelta(days=7)
    ) -> Maintained:
        """Unites small files, and deletes files that nobody needs. Batches can be stored meanwhile.

        Delta's library does it. Deleted are files that were removed from the table, and files with
        the names that attempts and Delta's library give. Other files remain, because the table may
        be in the folder of another one: as `sales/revenue` is in that of `sales`.
        """
        check_retention(retention)
        with self.existing():
            table = self.load()
        replaced, by = self._compact(table)
        paths = self._unused(table, retention)
        self.storage.remove(paths)
        return Maintained(replaced, by, paths)

    def _compact(self, table: DeltaTable) -> tuple[int, int]:
        """Unites small files. Returns how many there were, and how many there are instead."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                done = table.optimize.compact(target_size=TARGET_FILE_BYTES)
            except CommitFailedError:
                if attempt == _ATTEMPTS:
                    raise
                table.update_incremental()
            else:
                return done["numFilesRemoved"], done["numFilesAdded"]
        raise AssertionError

    @staticmethod
    def _unused(table: DeltaTable, retention: timedelta) -> list[str]:
        def unused(*, full: bool) -> list[str]:
            return table.vacuum(
                retention_hours=int(retention.total_seconds() // 3600),
                dry_run=True,
                enforce_retention_duration=False,
                full=full,
            )

        # A full vacuum deletes whatever is in the folder, also other tables.
        left = [
            path
            for path in unused(full=True)
            if WRITTEN.fullmatch(path) or _BY_LIBRARY.fullmatch(path)
        ]
        return sorted({*unused(full=False), *left})

    def _check_key(self, schema: StructType) -> None:
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise InvalidArgument(
                f"the DataFrame has no column {', '.join(missing)}, which is part of the key of "
                f"{self.name}",
                f"It has: {', '.join(schema.names)}.",
            )
        for name in schema.names if self.key else ():
            if name.startswith(RESERVED):
                raise InvalidArgument(
                    f"the column {name} has a name that merges into {self.name} use",
                    "Give it another name: withColumnRenamed().",
                )
            if name in self.key and isinstance(schema[name].dataType, _WITH_PARTS):
                raise InvalidArgument(
                    f"the key of {self.name} has the column {name}, whose values have parts",
                    "Use columns of plain types, such as one of the parts.",
                )
