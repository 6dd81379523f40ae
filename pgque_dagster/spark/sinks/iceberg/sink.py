"""Stores batches in an Iceberg table. It needs no jar."""

import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ....client import Client, InvalidArgument
from ...batch import SparkBatch, attempt_of
from ..files.data_files import with_batch_id
from ..files.file_reader import ListedFile, read_table_files
from ..files.storage import Storage
from ..modes import SchemaEvolution, check_evolution, check_retention
from ..publication import BatchIdentity
from ..tables import INCARNATION, StoredBatch
from .catalog import file_options, open_catalog
from .output import IcebergOutput, IcebergTarget
from .schema import changed_columns, iceberg_columns
from .sweep import of_dead_attempts, old_files, unreferenced

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


class IcebergSink:
    """An Iceberg table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table by one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see a batch
    whole or not at all. Another attempt at the batch replaces its rows in the same commit.

    By default the catalog is in the queue's own database, in the schema `catalog_schema`. The role
    needs CREATE in the database to create this schema, or USAGE and CREATE in a schema that exists.
    Other programs read the table through this catalog as pyiceberg's type `sql`, or by the path of
    its newest metadata file.

    A table belongs to one incarnation of a database, as for `ParquetSink`. It is created by the
    first write. Rows of an attempt that was not acked remain if no later attempt stores the batch.

    Args:
        table: its name with its namespace, such as `sales.revenue`.
        warehouse: where new tables are created: a directory that driver and executors share, or a
            URL such as `s3://bucket/warehouse`. Each new table gets a folder of its own, such as
            `sales/revenue-4f0c…`, so databases may share a warehouse.
        catalog: properties of another catalog, as pyiceberg takes them, such as
            `{"type": "rest", "uri": "https://…"}`.
        catalog_schema: the schema of the catalog in the queue's own database.
        schema_evolution: `fail` refuses a DataFrame with other columns than the table; with
            `add_columns`, the table gets columns that it lacks, and columns that the DataFrame
            lacks are null.
        storage_options: credentials and the like for a URL, such as `aws_access_key_id`. By
            default, each process takes them from its environment, such as AWS_ACCESS_KEY_ID.

    Raises:
        InvalidArgument: if the table's name has no namespace, or if nothing here can open the URL
            or the path.
    """

    def __init__(
        self,
        table: str,
        *,
        warehouse: str | Path,
        catalog: Mapping[str, str] | None = None,
        catalog_schema: str = "iceberg_catalog",
        schema_evolution: SchemaEvolution = "fail",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if len(table.split(".")) < 2 or not all(table.split(".")):
            raise InvalidArgument(
                f"{table!r} is no name of an Iceberg table",
                "Give it a namespace, such as sales.revenue.",
            )
        check_evolution(schema_evolution)
        self._warehouse = Storage.of(warehouse, storage_options)
        if set(f"{self._warehouse.location}/{table}") & set("%#?"):
            raise InvalidArgument(
                f"the warehouse {self._warehouse.location} or the name of table {table} has one of "
                "% # ? in it, so readers would look for the files elsewhere",
                "Use a path without these characters.",
            )
        self._target = IcebergTarget(self._warehouse, schema_evolution, table)
        self._catalog = dict(catalog or {})
        self._catalog_schema = catalog_schema

    @property
    def table(self) -> str:
        """The table's name with its namespace."""
        return self._target.table

    def write(self, batch: SparkBatch, frame: DataFrame) -> StoredBatch:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it to a table once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The id of the snapshot that has the batch, and the number of rows.

        Raises:
            InvalidArgument: if the table is of another or an unknown incarnation, or cannot take
                the columns; if this claim wrote the batch before.
            PermissionDenied: if the role may not use or create the catalog.
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            StorageFailed: if the files, the table or the catalog cannot be written. The batch
                stays open.
        """
        columns = iceberg_columns(batch.spark, with_batch_id(frame.schema))
        identity = BatchIdentity.of(batch.claim)
        with ExitStack() as stack:
            with self._target.errors(identity):
                catalog = stack.enter_context(self._open(attempt_of(batch).url))
                output = IcebergOutput(self._target, catalog, batch.claim, identity, columns)
                table = self._table_of(catalog, identity, columns)
                output.begin(table)
            storage = self._storage_of(table.location())
            return output.store(batch, frame, storage)

    def read(self, spark: SparkSession, url: str) -> DataFrame:
        """Returns the table's newest snapshot, which executors read in parallel.

        Args:
            spark: the session.
            url: the queue's database, which has the catalog.

        Raises:
            InvalidArgument: if there is no table, or it needs another reader.
        """
        with self._open(url) as catalog:
            table = self._load(catalog)
            tasks = list(table.scan().plan_files())
        found = [task.file for task in tasks]
        storage = self._storage_of(table.location())
        root = table.location().rstrip("/") + "/"
        foreign = [file.file_path for file in found if not file.file_path.startswith(root)]
        if foreign:
            reason = f"files outside its location, such as {foreign[0]}"
        elif any(task.delete_files for task in tasks):
            reason = "files that list deleted rows"
        elif changed := changed_columns(table):
            reason = f"columns that were renamed, or dropped and added again: {', '.join(changed)}"
        else:
            reason = ""
        if reason:
            raise InvalidArgument(
                f"{self._target.name} has {reason}",
                "Read it by pyiceberg, or by Spark with the jar of Iceberg.",
            )
        files = [
            ListedFile(file.file_path.removeprefix(root), file.file_size_in_bytes) for file in found
        ]
        schema = from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)
        return read_table_files(spark, storage, files, schema)

    def expire_snapshots(self, url: str, *, retention: timedelta = timedelta(days=7)) -> None:
        """Forgets old snapshots. Each batch adds one, and each commit reads the list of them.

        Args:
            url: the queue's database, which has the catalog.
            retention: how long a snapshot stays readable.
        """
        with self._open(url) as catalog:
            table = self._load(catalog)
            expired = table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - retention)
            expired.commit()

    def sweep(
        self, url: str, *, older_than: timedelta = timedelta(days=7), dry_run: bool = False
    ) -> list[str]:
        """Removes data files that attempts left, such as those of killed ones.

        A file is removed if no snapshot that the table has refers to it, its batch is finished or
        was claimed again, and it is older. Snapshots stay as they are.

        Args:
            url: the queue's database, which has the leases and the catalog.
            older_than: how long ago a file was written, at least. It must be longer than an attempt
                takes, with all pauses.
            dry_run: whether to list the files only.

        Returns:
            The paths of the files, relative to the table's location.

        Raises:
            InvalidArgument: if there is no table, if it is of another incarnation, whose leases
                this database does not have, or if `older_than` is under a day.
            StorageFailed: if files cannot be listed or removed.
        """
        check_retention(older_than)
        with self._open(url) as catalog, Client(url) as client:
            table = self._load(catalog)
            own, found = str(client.incarnation()), table.properties.get(INCARNATION)
            if found != own:
                raise InvalidArgument(
                    f"{self._target.name} is of incarnation {found or 'unknown'}, and database "
                    f"{client.database} of incarnation {own} does not know whose leases are live",
                    "Sweep it from the database that stores batches in it.",
                )
            storage = self._storage_of(table.location())
            dead = of_dead_attempts(client, old_files(storage, older_than))
            # Loaded again: what was published since the files were listed is referenced.
            unused = unreferenced(table.refresh(), dead)
        if not dry_run:
            storage.remove(unused)
        return unused

    def _load(self, catalog: "Catalog") -> "Table":
        with self._target.existing():
            return catalog.load_table(self._target.table)

    def _open(self, url: str) -> "AbstractContextManager[Catalog]":
        return open_catalog(url, self._catalog_schema, self._catalog, self._warehouse)

    def _table_of(self, catalog: "Catalog", batch: BatchIdentity, columns: pa.Schema) -> "Table":
        """Loads the table, and creates it if there is none."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        name = self._target.table
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            # Another attempt may create them at the same time.
            namespace = name.rpartition(".")[0]
            try:
                catalog.create_namespace(namespace)
            except Exception:
                # pyiceberg's catalog in a database raises the database's error.
                if not catalog.namespace_exists(namespace):
                    raise
            with suppress(TableAlreadyExistsError):
                catalog.create_table(
                    name,
                    schema=columns,
                    location=self._location(name),
                    properties={
                        INCARNATION: batch.incarnation,
                        "commit.manifest-merge.enabled": "true",
                    },
                )
            return catalog.load_table(name)

    def _location(self, name: str) -> str:
        """A new folder: another catalog may have a table of this name in the same warehouse."""
        folder = f"{self._warehouse.location}/{name.replace('.', '/')}-{uuid.uuid4().hex}"
        # Not Path.as_uri(): pyiceberg does not decode what that encodes.
        return folder if self._warehouse.is_url else f"file://{folder}"

    def _storage_of(self, location: str) -> Storage:
        """The storage of a table, which is a path as it stands after `file:`."""
        if location.startswith("file:"):
            location = urlsplit(location).path
        return Storage.of(location, file_options(self._warehouse))
