"""Stores batches in an Iceberg table. It needs no jar."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ....client import Client, InvalidArgument
from ....client.read_batch import ReadBatch
from ....client.sharded_claim import SHARDS
from ...batch import SparkBatch, attempt_of
from ..compaction import compact
from ..files.file_reader import read_table_files
from ..files.storage import Storage
from ..members import INCARNATION, Stored, newest_in
from ..modes import Maintained, SchemaEvolution, TableMode, check_retention
from ..table_checks import check_incarnation
from ..tables import TableSink
from .catalog import file_options, open_catalog
from .commit import IcebergOutput, attempts_in, vectors_in
from .maintenance import IcebergFiles, expire, of_dead_attempts, old_files, unreferenced
from .table_files import planned, searched, spark_columns, storage_of, why_unreadable


class IcebergSink(TableSink):
    """An Iceberg table, with the column `batch_id`.

    Spark's tasks write Parquet files, and the driver adds them to the table in one commit, which
    fails for an attempt that lost its lease. `publication.py` has the proof. Readers see all of a
    batch or nothing of it.

    - `append` adds the rows. Another attempt at the batch replaces them in the same commit.
    - `upsert` replaces the row of each key, or inserts it, as for `DeltaSink`: tasks find the rows
      that are replaced, and the commit lists their positions as deleted.

    By default the catalog is in the queue's own database, in the schema `catalog_schema`. The role
    needs CREATE in the database to create this schema, or USAGE and CREATE in a schema that exists.
    Other programs read the table through this catalog as pyiceberg's type `sql`, or by the path of
    its newest metadata file.

    The first write creates the table, which belongs to one incarnation of a database, as for
    `ParquetSink`. Rows of an attempt that was not acked remain if no later one stores the batch.

    Args:
        table: its name with its namespace, such as `sales.revenue`.
        warehouse: where new tables are created: a directory that driver and executors share, or a
            URL such as `s3://bucket/warehouse`. Each new table gets its own folder, such as
            `sales/revenue-4f0c…`, so databases may share a warehouse.
        catalog: properties of another catalog, in pyiceberg's form, such as
            `{"type": "rest", "uri": "https://…"}`.
        catalog_schema: the schema of the catalog in the queue's own database.
        catalog_url: another database that has the catalog. A queue over several databases needs
            it, or `catalog`.
        mode: `append` or `upsert`.
        key: the columns of the key, for `upsert`.
        schema_evolution: `fail` refuses a DataFrame with other columns than the table; with
            `add_columns`, the table gets columns that it lacks, and columns that the DataFrame
            lacks are null.
        storage_options: credentials and other options for a URL, such as `aws_access_key_id`. By
            default, each process takes them from its environment, such as AWS_ACCESS_KEY_ID.

    Attributes:
        table: its name with its namespace.

    Raises:
        InvalidArgument: if the table's name has no namespace; if the mode needs a key and there is
            none, or the reverse; or if the URL or the path cannot be opened.
    """

    not_found = NoSuchTableError
    libraries = ("pyiceberg", "sqlalchemy", "psycopg", "requests", "pyarrow")

    def __init__(
        self,
        table: str,
        *,
        warehouse: str | Path,
        catalog: Mapping[str, str] | None = None,
        catalog_schema: str = "iceberg_catalog",
        catalog_url: str | None = None,
        mode: TableMode = "append",
        key: Sequence[str] = (),
        schema_evolution: SchemaEvolution = "fail",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if len(table.split(".")) < 2 or not all(table.split(".")):
            raise InvalidArgument(
                f"{table!r} is not a name of an Iceberg table",
                "Give it a namespace, such as sales.revenue.",
            )
        super().__init__(Storage.of(warehouse, storage_options), schema_evolution, mode, key)
        if set(f"{self.storage.location}/{table}") & set("%#?"):
            raise InvalidArgument(
                f"the warehouse {self.storage.location} or the name of table {table} has one of "
                "% # ? in it, so readers would look for the files elsewhere",
                "Use a path without these characters.",
            )
        self.table = table
        self._catalog = dict(catalog or {})
        self._catalog_schema = catalog_schema
        self._catalog_url = catalog_url

    @property
    def name(self) -> str:
        """The table's name for errors."""
        return f"Iceberg table {self.table}"

    @contextmanager
    def attempt(self, batch: SparkBatch, schema: StructType) -> Iterator[IcebergOutput]:
        """Begins an attempt to store a batch."""
        self.check_merge(batch.claim, schema)
        with self.catalog_for(batch) as catalog:
            given = self.table, catalog, batch.claim, schema, batch.spark
            yield IcebergOutput(self, *given, self.key)

    @contextmanager
    def catalog_for(self, batch: SparkBatch) -> Iterator[Catalog]:
        """Opens the catalog for the block, in which a batch is stored."""
        with ExitStack() as stack:
            with self.errors(batch.claim):
                url = None if batch.claim.shards else attempt_of(batch).url
                catalog = stack.enter_context(self.open(url))
            yield catalog

    @property
    def records(self) -> Storage:
        """The place where vectors record their failures: beside the tables, in the warehouse."""
        return Storage.of(self.storage.location, file_options(self.storage))

    @contextmanager
    def newest(self) -> Iterator[Table]:
        """Loads the newest state of the table for the block."""
        with self.open(None) as catalog:
            yield catalog.load_table(self.table)

    def properties_of(self, table: Table) -> Mapping[str, str]:
        """Returns the properties of the table."""
        return table.properties

    def adopting(self, key: str, incarnation: str) -> str:
        """Returns the statement that sets a property of the table to an incarnation."""
        properties = f"{{'{key}': '{incarnation}'}}"
        return f"with table.transaction() as change: change.set_properties({properties})."

    def epochs_of(self, table: Table, claim: ReadBatch) -> Mapping[str, Stored]:
        """Returns which attempts have stored members of a claim in a state of the table."""
        if claim.is_final:
            # A property is kept when the snapshot expires.
            return newest_in(self.name, claim, vectors_in(table))
        mine = (x.epoch for _, record, x in attempts_in(table) if record == claim.record)
        newest = next(mine, None)
        return {} if newest is None else {"": newest}

    def read(self, spark: SparkSession, url: str, version: int | None = None) -> DataFrame:
        """Returns a snapshot of the table, which executors read in parallel.

        Args:
            spark: the session.
            url: the queue's database, which has the catalog.
            version: the snapshot's id; None for the newest.

        Raises:
            InvalidArgument: if the table does not exist, or needs another reader.
        """
        with self.opened(url) as table:
            tasks = planned(table, version)
        if problem := why_unreadable(table, tasks, version):
            raise InvalidArgument(
                f"{self.name} has {problem}",
                "Read it with pyiceberg, or with Spark and the jar of Iceberg.",
            )
        files = searched(table, tasks)
        return read_table_files(spark, storage_of(table, self.storage), files, spark_columns(table))

    def maintain(
        self, spark: SparkSession, url: str, *, retention: timedelta = timedelta(days=7)
    ) -> Maintained:
        """Compacts small files, and deletes unused files. Batches can be stored at the same time.

        It expires snapshots older than the retention, and all but the newest 1,000, because each
        commit reads and writes the list. It deletes data files to which no snapshot of the table
        refers, and whose attempts can no longer publish them. For a queue over several databases,
        as for Delta, only their age decides.

        Raises:
            InvalidArgument: if the table does not exist, is of another incarnation, whose leases
                this database does not have, or if the retention is less than a day.
            StorageFailed: if files cannot be written or removed.
        """
        check_retention(retention)
        with self.opened(url) as table:
            found, storage = table.properties.get(INCARNATION), storage_of(table, self.storage)
            dead = old_files(storage, retention)
            if found != SHARDS:
                with Client(url) as client:
                    # Only its own database knows whose leases are live.
                    own = str(client.incarnation())
                    adopt = self.adopting(INCARNATION, own)
                    check_incarnation(self.name, found, own, client.database, adopt)
                    dead = of_dead_attempts(client, dead)
            expire(table, storage, retention)
            # Loaded again, so that everything published since the files were listed is referenced.
            unused = unreferenced(table.refresh(), dead)
            storage.remove(unused)
            return compact(spark, IcebergFiles(table, self.name, storage), unused)

    @contextmanager
    def opened(self, url: str) -> Iterator[Table]:
        """Opens the table, with its catalog, for the block."""
        with self.open(url) as catalog:
            with self.existing():
                table = catalog.load_table(self.table)
            yield table

    def open(self, url: str | None) -> AbstractContextManager[Catalog]:
        """Opens the catalog for the block.

        Args:
            url: the queue's database, which has the catalog by default; None if there are several.

        Raises:
            InvalidArgument: if nothing says where the catalog is.
        """
        url = self._catalog_url or url
        if url is None and not self._catalog:
            raise InvalidArgument(
                f"{self.name} is of a queue over several databases, so the database that has its "
                "catalog must be named",
                "Pass its catalog_url, or another catalog.",
            )
        return open_catalog(url or "", self._catalog_schema, self._catalog, self.storage)
