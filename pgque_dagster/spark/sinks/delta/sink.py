"""Stores batches in a Delta table. It needs no jar."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....client import InvalidArgument
from ....client.read_batch import ReadBatch
from ...batch import SparkBatch
from ..compaction import COMPACTED, compact
from ..files.copy_files import kept_files
from ..files.file_reader import ListedFile, read_table_files
from ..files.storage import Storage
from ..modes import Maintained, SchemaEvolution, TableMode, check_retention
from ..table_output import WRITTEN
from ..tables import TableSink
from .commit import DeltaOutput, app_id, load_table
from .log import has_vectors, now, stored_files, vector_files
from .maintenance import DeltaFiles, keep_removed
from .merge import RESERVED
from .schema import spark_columns
from .vectors import VECTOR_FILE

# The files that Delta's library writes when it compacts or merges files.
_BY_LIBRARY = re.compile(r"[^/]+\.parquet")
# The features of tables that are read here. Delta's library demands the type variant of readers of
# tables that it creates with deletion vectors, even if no column has it.
_READ_FEATURES = {"timestampNtz", "v2Checkpoint", "deletionVectors", "variantType"}


class DeltaSink(TableSink):
    """A Delta table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table in one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see all of a
    batch or nothing of it.

    - `append` adds the rows. Another attempt at the batch replaces them in the same commit.
    - `upsert` replaces the row of each key, or inserts it. Applying a batch again gives the same
      rows, if it has the same keys. Rows that only an earlier attempt had remain.

    For `upsert`, tasks find the rows that are replaced, and the commit marks them as deleted by
    deletion vectors. In a table without these, Delta's library reads the rows and rewrites the
    files that hold their keys, in the driver's process. If two batches with the same keys are
    processed at once, the one that commits last wins.

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
        deletion_vectors: whether a new table with mode `upsert` has them; older readers need a
            table without.
        storage_options: credentials and other options for a URL, as named by Delta's library, such
            as `aws_access_key_id`. By default, each process takes them from its environment, such
            as AWS_ACCESS_KEY_ID.

    Attributes:
        location: the directory or URL.

    Raises:
        InvalidArgument: if the mode needs a key and there is none, or the reverse, or if the URL
            or the path cannot be opened.
    """

    not_found = TableNotFoundError
    libraries = ("deltalake", "_internal")

    def __init__(
        self,
        location: str | Path,
        *,
        mode: TableMode = "append",
        key: Sequence[str] = (),
        schema_evolution: SchemaEvolution = "fail",
        deletion_vectors: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(Storage.of(location, storage_options), schema_evolution, mode, key)
        self.location = self.storage.location
        if not self.storage.is_url and set(self.location) & {"%", "\\"}:
            raise InvalidArgument(
                f"the path {self.location} has % or \\ in it, and Delta's library looks "
                "for it elsewhere",
                "Use a path without these characters.",
            )
        self.deletion_vectors = deletion_vectors

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Delta table {self.location}"

    def load(self) -> DeltaTable:
        """Loads the newest version of the table.

        Raises:
            TableNotFoundError: if the table does not exist.
        """
        return load_table(self.storage)

    @contextmanager
    def attempt(self, batch: SparkBatch, schema: StructType) -> Iterator[DeltaOutput]:
        """Begins an attempt to store a batch."""
        self.check_merge(batch.claim, schema)
        if reserved := [x for x in schema.names if self.key and x.startswith(RESERVED)]:
            raise InvalidArgument(
                f"the column {reserved[0]} has a name that merges into {self.name} use",
                "Give it another name: withColumnRenamed().",
            )
        vectors = self.deletion_vectors and bool(self.key)
        output = DeltaOutput(self, batch.claim, schema, self.key, deletion_vectors=vectors)
        yield output
        if output.is_merged:
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

    def epochs_of(self, table: DeltaTable, claim: ReadBatch) -> dict[str, int]:
        """Returns which attempts have stored members of a claim in a version of the table."""
        found = {x: table.transaction_version(app_id(each)) for x, each in claim.members.items()}
        return {shard: epoch for shard, epoch in found.items() if epoch is not None}

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Returns a version of the table, which executors read in parallel.

        Args:
            spark: the session.
            version: the version; None for the newest.

        Raises:
            InvalidArgument: if the table does not exist, or needs another reader.
        """
        with self.existing():
            table = self.load()
        if version is not None:
            table.load_as_version(version)
        readers = set(table.protocol().reader_features or ()) - _READ_FEATURES
        if readers or table.metadata().partition_columns:
            needed = ", ".join(sorted(readers)) or "partitions"
            raise InvalidArgument(
                f"{self.name} needs a reader that knows {needed}",
                "Read it with deltalake, or with Spark and the jars of Delta.",
            )
        listed: Sequence[ListedFile]
        if has_vectors(table):
            listed = [x.searched(()) for x in stored_files(self.storage, table.version())]
        else:
            files = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
            listed = [ListedFile(unquote(file["path"]), file["size_bytes"]) for file in files]
        return read_table_files(spark, self.storage, listed, spark_columns(table))

    def maintain(
        self,
        spark: SparkSession,
        url: str | None = None,
        *,
        retention: timedelta = timedelta(days=7),
    ) -> Maintained:
        """Compacts small files, and deletes unused files. Batches can be stored at the same time.

        It deletes files that were removed from the table, and files whose names come from attempts
        or from Delta's library. Other files remain, because the table may be in the folder of
        another one, as `sales/revenue` is in the folder of `sales`.
        """
        check_retention(retention)
        with self.existing():
            table = self.load()
        paths = self._unused(table, keep_removed(table, retention))
        self.storage.remove(paths)
        return compact(spark, DeltaFiles(table, self.name, self.storage), paths)

    def _unused(self, table: DeltaTable, retention: timedelta) -> list[str]:
        def unused(*, full: bool) -> list[str]:
            return table.vacuum(
                retention_hours=int(retention.total_seconds() // 3600),
                dry_run=True,
                enforce_retention_duration=False,
                full=full,
            )

        # A full vacuum deletes everything in the folder, including other tables.
        found, (copied, records) = unused(full=True), kept_files(self.storage, retention)
        patterns = WRITTEN, COMPACTED, _BY_LIBRARY
        ours = [x for x in found if any(each.fullmatch(x) for each in patterns)]
        left = {*unused(full=False), *ours} - copied
        if has_vectors(table):
            # Delta's library does not know which files of vectors are in use.
            since = now() - int(retention.total_seconds() * 1000)
            used = vector_files(self.storage, table.version(), since)
            left.update(x for x in found if VECTOR_FILE.fullmatch(x) and x not in used)
        return sorted(left.union(records))
