"""IO managers for Delta and Iceberg tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, model_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from .. import spark
from ..project.keys import ROWS, TABLE
from ..project.resource import PgqueResource
from ..spark.sinks.modes import BATCH_ID, SchemaEvolution, TableMode, check_mode
from .batch_io_manager import BatchIOManager, named_table, upstream_metadata
from .inputs import session_of, wanted_batches

if TYPE_CHECKING:
    from ..spark.sinks.tables import StoredBatch

# The version of the table with the batch.
TABLE_VERSION = "pgque/table_version"


class LakeBatchIOManager(BatchIOManager):
    """What the IO managers of Delta and Iceberg share."""

    mode: TableMode = Field(
        default="append",
        description="append adds the rows; upsert replaces the row of each key.",
    )
    key: list[str] = Field(default_factory=list, description="Columns of the key, for upsert.")
    schema_evolution: SchemaEvolution = Field(
        default="fail",
        description="fail refuses a DataFrame with other columns; add_columns adds the new ones to "
        "the table.",
    )
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="How to access an object store, such as aws_access_key_id, preferably as "
        "EnvVar. Other values come from the environment of each process.",
    )

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        check_mode(self.mode, self.key)
        return self


class DeltaBatchIOManager(LakeBatchIOManager):
    """Stores DataFrames of `@pgque_asset` in Delta tables, at `<base_dir>/<asset>`.

    A table has the column `batch_id`. The metadata of each output has the version of the table.
    `DeltaSink` describes the modes, and what remains when an attempt is killed or stopped.

    A downstream asset gets the whole table, or the batches that the metadata of its input names, as
    for `ParquetBatchIOManager`.
    """

    base_dir: str = Field(
        description="A directory that driver and executors share, or the URL of a folder in an "
        "object store, such as s3://bucket/folder."
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Whether new tables with upsert have them; older readers need tables without.",
    )

    def _store(self, sink: Any, batch: "spark.SparkBatch", frame: DataFrame) -> dict[str, Any]:
        return {
            "path": dg.MetadataValue.path(sink.location),
            **_version_and_rows(sink.write(batch, frame)),
        }

    def _load(self, context: dg.InputContext) -> DataFrame:
        wanted = wanted_batches(context)
        session = session_of(self.pyspark, context)
        return _only(wanted, self.sink_of(context.asset_key, {}).read(session))

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> "spark.DeltaSink":
        """Returns the sink of an asset's table."""
        return spark.DeltaSink(
            "/".join((self.base_dir.rstrip("/"), *key.path)),
            mode=self.mode,
            key=self.key,
            schema_evolution=self.schema_evolution,
            deletion_vectors=self.deletion_vectors,
            storage_options=self.storage_options,
        )


class IcebergBatchIOManager(LakeBatchIOManager):
    """Stores DataFrames of `@pgque_asset` in Iceberg tables.

    The table's name is the asset's metadata `dagster/table_name`, or `namespace` followed by the
    asset's key. It has the column `batch_id`. The metadata of each output has the id of the
    snapshot. The catalog is in the database of `pgque`, or elsewhere. `IcebergSink` describes the
    modes, and what remains when an attempt is killed or stopped.

    A downstream asset gets the whole table, or the batches that the metadata of its input names, as
    for `ParquetBatchIOManager`.

    Example:
        .. code-block:: python

            pgque = PgqueResource(url=dg.EnvVar("PGQUE_URL"))
            resources = {
                "pgque": pgque,
                "io_manager": IcebergBatchIOManager(pgque=pgque, warehouse="s3://bucket/warehouse"),
            }
    """

    pgque: dg.ResourceDependency[PgqueResource]

    warehouse: str = Field(
        description="Where new tables are created: a directory that driver and executors share, or "
        "the URL of a folder in an object store, such as s3://bucket/warehouse."
    )
    namespace: str = Field(default="pgque", description="The namespace of the tables.")
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of a catalog outside the queue's database, as pyiceberg takes "
        "them, such as type: rest and uri.",
    )
    catalog_schema: str = Field(
        default="iceberg_catalog", description="The schema of the catalog in the queue's database."
    )

    def _store(self, sink: Any, batch: "spark.SparkBatch", frame: DataFrame) -> dict[str, Any]:
        return {TABLE: sink.table, **_version_and_rows(sink.write(batch, frame))}

    def _load(self, context: dg.InputContext) -> DataFrame:
        wanted = wanted_batches(context)
        sink = self.sink_of(context.asset_key, upstream_metadata(context))
        session = session_of(self.pyspark, context)
        return _only(wanted, sink.read(session, self.pgque.database_url()))

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> "spark.IcebergSink":
        """Returns the sink of an asset's table."""
        return spark.IcebergSink(
            named_table(metadata) or ".".join((self.namespace, *key.path)),
            warehouse=self.warehouse,
            catalog=self.catalog,
            catalog_schema=self.catalog_schema,
            catalog_url=self.pgque.database_url(),
            mode=self.mode,
            key=self.key,
            schema_evolution=self.schema_evolution,
            storage_options=self.storage_options,
        )


def _version_and_rows(stored: "StoredBatch") -> dict[str, Any]:
    # As text, because Dagster's pages round large numbers, and the ids of snapshots are large.
    return {TABLE_VERSION: str(stored.version), ROWS: stored.rows}


def _only(wanted: frozenset[int] | None, table: DataFrame) -> DataFrame:
    # The version that is read has every batch that was recorded before the read began.
    return table if wanted is None else table.where(f.col(BATCH_ID).isin(list(wanted)))
