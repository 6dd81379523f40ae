"""Stores batches in an Iceberg table. It needs no jar."""

import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...client import BatchNotOpen, InvalidArgument, LeaseLost
from ..batch import SparkBatch, attempt_of
from .data_files import TARGET_FILE_BYTES, write_files
from .file_reader import ListedFile, read_table_files
from .iceberg_catalog import file_options, open_catalog
from .iceberg_output import IcebergOutput, Target
from .iceberg_schema import iceberg_columns
from .publication import Attempt, publish
from .storage import Storage, StorageFailed, needing_extra
from .tables import (
    LINEAGE,
    BatchIdentity,
    SchemaEvolution,
    StoredBatch,
    with_batch_id,
    written_for,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_FOLDER = "data"


class IcebergSink:
    """An Iceberg table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table by one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see a batch
    whole or not at all. Another attempt at the batch replaces its rows in the same commit.

    By default the catalog is in the queue's own database, in the schema `catalog_schema`. The role
    needs CREATE in the database to create this schema, or USAGE and CREATE in a schema that exists.
    Other programs read the table through this catalog as pyiceberg's type `sql`, or by the path of
    its newest metadata file.

    A table belongs to one lineage of a database, as for `ParquetSink`. It is created by the first
    write. Rows of an attempt that was not acked remain if no later attempt stores the batch.

    Args:
        table: its name with its namespace, such as `sales.revenue`.
        warehouse: where new tables are created: a directory that driver and executors share, or a
            URL such as `s3://bucket/warehouse`.
        catalog: properties of another catalog, as pyiceberg takes them, such as
            `{"type": "rest", "uri": "https://…"}`.
        catalog_schema: the schema of the catalog in the queue's own database.
        schema_evolution: `fail` refuses a DataFrame with other columns than the table; with
            `add_columns`, the table gets columns that it lacks, and columns that the DataFrame
            lacks are null.
        storage_options: credentials and the like for a URL, such as `aws_access_key_id`. By
            default, each process takes them from its environment, such as AWS_ACCESS_KEY_ID.
        target_file_bytes: a task begins another file when one has this size.

    Raises:
        InvalidArgument: if the table's name has no namespace, or nothing here can open the URL.
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
        target_file_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        if len(table.split(".")) < 2 or not all(table.split(".")):
            raise InvalidArgument(
                f"{table!r} is no name of an Iceberg table",
                "Give it a namespace, such as sales.revenue.",
            )
        if schema_evolution not in ("fail", "add_columns"):
            raise InvalidArgument(
                f"no schema_evolution {schema_evolution!r}", "There are fail and add_columns."
            )
        self._warehouse = Storage.of(warehouse, storage_options)
        self._target = Target(table, schema_evolution, self._warehouse)
        self._catalog = dict(catalog or {})
        self._catalog_schema = catalog_schema
        self._target_file_bytes = target_file_bytes

    def write(self, batch: SparkBatch, frame: DataFrame) -> StoredBatch:
        """Stores a batch, and replaces what earlier attempts at it stored.

        Args:
            batch: the batch. Each claim may write it to a table once.
            frame: its rows, without a column `batch_id` in any case.

        Returns:
            The id of the snapshot that has the batch, and the number of rows.

        Raises:
            InvalidArgument: if the table is of another or an unknown lineage, or cannot take the
                columns; if this claim wrote the batch before.
            PermissionDenied: if the role may not use or create the catalog.
            LeaseLost: if another owner took the batch over. Nothing is stored.
            BatchNotOpen: if the batch was acked meanwhile. Nothing is stored.
            StorageFailed: if the files, the table or the catalog cannot be written. The batch
                stays open.
        """
        claim = batch.claim
        identity = BatchIdentity.of(claim)
        rows = with_batch_id(frame, batch.batch_id)
        columns = iceberg_columns(batch.spark, rows.schema)
        attempt = Attempt(claim.lease.epoch, uuid.uuid4().hex)
        with ExitStack() as stack:
            with self._target.errors(identity):
                catalog = stack.enter_context(self._open(attempt_of(batch).url))
            output = IcebergOutput(self._target, catalog, claim, identity, attempt, columns)
            with self._target.errors(identity):
                location = self._prepare(catalog, output, identity, columns)
            storage = Storage.of(location, file_options(self._warehouse))
            folder = f"{_FOLDER}/{batch.batch_id}-{attempt.epoch}-{attempt.id}"
            with written_for(self._target.name, identity):
                output.files = write_files(
                    rows, storage, folder, target_file_bytes=self._target_file_bytes
                )
            try:
                publish(claim, output)
            except (LeaseLost, BatchNotOpen, InvalidArgument):
                # What cannot be removed now, a sweep of the warehouse removes.
                with suppress(StorageFailed):
                    storage.remove(file.path for file in output.files)
                raise
        return StoredBatch(output.version, sum(file.rows for file in output.files))

    def read(self, spark: SparkSession, url: str) -> DataFrame:
        """Returns the table's newest snapshot, which executors read in parallel.

        Args:
            spark: the session.
            url: the queue's database, which has the catalog.

        Raises:
            InvalidArgument: if there is no table.
        """
        with needing_extra("iceberg"):
            from pyiceberg.exceptions import NoSuchTableError
        try:
            with self._open(url) as catalog:
                table = catalog.load_table(self._target.table)
                found = [task.file for task in table.scan().plan_files()]
        except NoSuchTableError:
            raise InvalidArgument(
                f"there is no {self._target.name}", "The first batch that is stored creates it."
            ) from None
        storage = Storage.of(table.location(), file_options(self._warehouse))
        root = table.location().rstrip("/") + "/"
        foreign = [file.file_path for file in found if not file.file_path.startswith(root)]
        if foreign:
            raise InvalidArgument(
                f"{self._target.name} has files outside its location, such as {foreign[0]}",
                "Read it by pyiceberg, or by Spark with the jar of Iceberg.",
            )
        files = [
            ListedFile(file.file_path.removeprefix(root), file.file_size_in_bytes, {})
            for file in found
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
            table = catalog.load_table(self._target.table)
            expired = table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - retention)
            expired.commit()

    def _open(self, url: str) -> "AbstractContextManager[Catalog]":
        return open_catalog(url, self._catalog_schema, self._catalog, self._warehouse)

    def _prepare(
        self,
        catalog: "Catalog",
        output: IcebergOutput,
        batch: BatchIdentity,
        columns: pa.Schema,
    ) -> str:
        """Creates the table if there is none, checks that it fits, and returns its location."""
        from pyiceberg.exceptions import (
            NamespaceAlreadyExistsError,
            NoSuchTableError,
            TableAlreadyExistsError,
        )

        name = self._target.table
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            # Another attempt may create them at the same time.
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            with suppress(TableAlreadyExistsError):
                catalog.create_table(
                    name,
                    schema=columns,
                    location=self._location(name),
                    properties={LINEAGE: batch.lineage, "commit.manifest-merge.enabled": "true"},
                )
            table = catalog.load_table(name)
        output.check(table)
        return str(table.location())

    def _location(self, name: str) -> str:
        place = self._warehouse.inside(name.replace(".", "/"))
        return place.location if place.is_url else Path(place.location).as_uri()
