"""IO managers that store the output of a batch in a Delta or Iceberg table, each batch once.

They only call the sinks, which say what a crash can leave behind.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dagster as dg
from pydantic import Field, model_validator
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..client import InvalidArgument
from ..keys import REPLAY, ROWS, TABLE
from ..resource import PgqueResource
from ..spark.cluster.executor_errors import clear_executor_errors
from ..spark.sinks.modes import BATCH_ID, DeltaMode, SchemaEvolution, check_mode
from ..step_errors import logs_errors_first
from .current_batch import current_batch
from .inputs import Wanted, session_of
from .metadata import set_aside

if TYPE_CHECKING:
    from ..spark import DeltaSink, IcebergSink, SparkBatch
    from ..spark.sinks.tables import StoredBatch

# The version of the table that has the batch.
TABLE_VERSION = "pgque/table_version"
_EVOLUTION = "fail, or add_columns to the table and have null where the DataFrame lacks one."
_OPTIONS = (
    "How to access an object store, such as aws_access_key_id, best as EnvVar. "
    "What is not given comes from the environment of each process."
)


class DeltaBatchIOManager(dg.ConfigurableIOManager):
    """Stores DataFrames of `@pgque_asset` in Delta tables, at `<base_dir>/<asset>`.

    A table has the column `batch_id`. The output of a `@pgque_replay_asset` has one more column,
    `replay`. The metadata of each output has the version of the table. `DeltaSink` describes the
    modes, and what remains when an attempt is killed or stopped.

    A downstream asset gets the whole table, or the batches that the metadata of its input names, as
    for `ParquetBatchIOManager`.
    """

    batch_safe: ClassVar[bool] = True
    checks_batch: ClassVar[bool] = True
    pyspark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]
    """The resource that the assets use, for steps that load an asset in a process of their own."""

    base_dir: str = Field(
        description="A directory that driver and executors share, or the URL of a folder in an "
        "object store, such as s3://bucket/folder."
    )
    mode: DeltaMode = Field(
        default="append",
        description="append adds the rows; upsert replaces the row of each key; replace replaces "
        "all rows of each key.",
    )
    key: list[str] = Field(
        default_factory=list, description="Columns of the key, for upsert and replace."
    )
    schema_evolution: SchemaEvolution = Field(default="fail", description=_EVOLUTION)
    storage_options: dict[str, str] = Field(default_factory=dict, repr=False, description=_OPTIONS)

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        check_mode(self.mode, self.key)
        return self

    @logs_errors_first
    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame. Replaces what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is not a DataFrame, or is not computed from a batch, or
                does not fit the table.
        """
        batch = current_batch(context)
        frame = _rows(context, obj, batch)
        location = self._location(context.asset_key)
        with clear_executor_errors():
            stored = self._sink(location).write(batch, frame)
        context.add_output_metadata(
            {
                "path": dg.MetadataValue.path(location),
                **_facts(stored),
                **set_aside(batch.claim),
            }
        )

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns the table's newest version, or the batches of it that the input wants."""
        spark = session_of(self.pyspark, context)
        return _wanted(context, self._sink(self._location(context.asset_key)).read(spark))

    def _sink(self, location: str) -> "DeltaSink":
        # Late, so that a code location loads without Arrow.
        from ..spark import DeltaSink

        return DeltaSink(
            location,
            mode=self.mode,
            key=self.key,
            schema_evolution=self.schema_evolution,
            storage_options=self.storage_options,
        )

    def _location(self, key: dg.AssetKey) -> str:
        return "/".join((self.base_dir.rstrip("/"), *key.path))


class IcebergBatchIOManager(dg.ConfigurableIOManager):
    """Stores DataFrames of `@pgque_asset` in Iceberg tables.

    The table is named by the asset's metadata `dagster/table_name`, or else by `namespace` and the
    asset's key. It has the column `batch_id`. The output of a `@pgque_replay_asset` has one more
    column, `replay`. The metadata of each output has the id of the snapshot. `IcebergSink`
    describes the catalog, and what remains when an attempt is killed or stopped.

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

    batch_safe: ClassVar[bool] = True
    checks_batch: ClassVar[bool] = True
    pgque: dg.ResourceDependency[PgqueResource]
    pyspark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]
    """The resource that the assets use, for steps that load an asset in a process of their own."""

    warehouse: str = Field(
        description="Where new tables are created: a directory that driver and executors share, or "
        "the URL of a folder in an object store, such as s3://bucket/warehouse."
    )
    namespace: str = Field(default="pgque", description="The namespace of the tables.")
    catalog: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of another catalog than that in the queue's database, as pyiceberg "
        "takes them, such as type: rest and uri.",
    )
    catalog_schema: str = Field(
        default="iceberg_catalog", description="The schema of the catalog in the queue's database."
    )
    schema_evolution: SchemaEvolution = Field(default="fail", description=_EVOLUTION)
    storage_options: dict[str, str] = Field(default_factory=dict, repr=False, description=_OPTIONS)

    @logs_errors_first
    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame. Replaces what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is not a DataFrame, or is not computed from a batch, or
                does not fit the table.
        """
        batch = current_batch(context)
        frame = _rows(context, obj, batch)
        table = self._table(context.asset_key, context.definition_metadata)
        with clear_executor_errors():
            stored = self._sink(table).write(batch, frame)
        context.add_output_metadata({TABLE: table, **_facts(stored), **set_aside(batch.claim)})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns the table's newest snapshot, or the batches of it that the input wants."""
        made = context.upstream_output
        table = self._table(context.asset_key, made.definition_metadata if made else None)
        spark = session_of(self.pyspark, context)
        return _wanted(context, self._sink(table).read(spark, self.pgque.database_url()))

    def _sink(self, table: str) -> "IcebergSink":
        # Late, so that a code location loads without Arrow.
        from ..spark import IcebergSink

        return IcebergSink(
            table,
            warehouse=self.warehouse,
            catalog=self.catalog,
            catalog_schema=self.catalog_schema,
            schema_evolution=self.schema_evolution,
            storage_options=self.storage_options,
        )

    def _table(self, key: dg.AssetKey, metadata: Mapping[str, Any] | None) -> str:
        named = (metadata or {}).get(TABLE)
        return str(getattr(named, "value", named) or ".".join((self.namespace, *key.path)))


def _rows(context: dg.OutputContext, value: object, batch: "SparkBatch") -> DataFrame:
    if not isinstance(value, DataFrame):
        raise InvalidArgument(
            f"{context.asset_key.to_user_string()} returned {type(value).__name__}",
            "Return a Spark DataFrame.",
        )
    if (context.definition_metadata or {}).get(REPLAY):
        return value.withColumn("replay", f.lit(batch.consumer))
    return value


def _facts(stored: "StoredBatch") -> dict[str, Any]:
    # As text, because Dagster's pages round large numbers, and the ids of snapshots are large.
    return {TABLE_VERSION: str(stored.version), ROWS: stored.rows}


def _wanted(context: dg.InputContext, table: DataFrame) -> DataFrame:
    wanted = Wanted.by(context)
    if wanted.since is not None:
        table = table.where(f.col(BATCH_ID) >= wanted.since)
    if wanted.batches is not None:
        table = table.where(f.col(BATCH_ID).isin(list(wanted.batches)))
    return table
