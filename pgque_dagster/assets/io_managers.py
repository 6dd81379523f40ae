"""IO managers that store the output of a batch idempotently.

They only call the sinks. `spark/sinks/` says how storing works and what a crash can leave behind.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import sql
from pydantic import Field
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from ..client import InvalidArgument
from ..keys import REPLAY, ROWS, TABLE
from ..resource import PgqueResource
from ..spark import ParquetSink, PostgresSink, clear_executor_errors
from ..spark.sinks.merge import Mode
from ..step_errors import logs_errors_first
from .current_batch import current_batch


class ParquetBatchIOManager(dg.ConfigurableIOManager):
    """Writes DataFrames of `@pgque_asset` as Parquet, in `<base_dir>/<asset>`.

    A reader of that directory sees one table, with the column `batch_id`. The output of a
    `@pgque_replay_asset` has one more directory level, and the column `replay`, for each replay.
    `ParquetSink` describes what remains when an attempt is killed or stopped.
    """

    base_dir: str = Field(
        description="A directory that driver and executors share, or a URL that Spark can write to."
    )

    @logs_errors_first
    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame. Replaces what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is not a DataFrame, or is not computed from a batch, or
                the directory holds batches of another database.
        """
        batch = current_batch(context)
        frame, rows = _counted(_data_frame(context, obj))
        with clear_executor_errors():
            directory = self._directory(context.asset_key)
            if (context.definition_metadata or {}).get(REPLAY):
                directory = f"{directory}/replay={batch.consumer}"
            path = ParquetSink(directory).write(batch, frame)
        context.add_output_metadata({"path": dg.MetadataValue.path(path), ROWS: rows()})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns all batches stored so far as one DataFrame."""
        spark = SparkSession.builder.getOrCreate()
        return ParquetSink(self._directory(context.asset_key)).read(spark)

    def _directory(self, key: dg.AssetKey) -> str:
        return "/".join((self.base_dir.rstrip("/"), *key.path))


class PostgresBatchIOManager(dg.ConfigurableIOManager):
    """Merges DataFrames of `@pgque_asset` into tables of the queue's database, exactly once.

    The IO manager stages the rows. They are merged into the table in the transaction of the batch's
    ack, so a run that dies at any point leaves either both or neither. Downstream assets in the
    same run start after the ack and see the rows.

    The table is named by the asset's metadata `dagster/table_name`, or else by the last part of the
    asset's key. It must exist; `upsert` and `add` need a unique index on the key. The role needs
    INSERT on the table, also SELECT and UPDATE for `upsert` and `add`, and CREATE in the table's
    schema or in `stage_schema`.

    Example:
        .. code-block:: python

            pgque = PgqueResource(url=dg.EnvVar("PGQUE_URL"))
            resources = {
                "pgque": pgque,
                "balances": PostgresBatchIOManager(pgque=pgque, mode="add", key=["account"]),
            }
    """

    pgque: dg.ResourceDependency[PgqueResource]
    mode: Mode = Field(
        default="append",
        description="append inserts the rows; upsert replaces the values of rows with the same "
        "key; add adds the values to those of rows with the same key.",
    )
    key: list[str] = Field(
        default_factory=list, description="Columns of a unique index, for upsert and add."
    )
    stage_schema: str | None = Field(
        default=None,
        description="Schema in which rows are staged. The role must be allowed to create tables "
        "there. By default the schema of the table.",
    )

    @logs_errors_first
    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stages a batch's DataFrame. The ack merges it.

        Raises:
            InvalidArgument: if the output is not a DataFrame, or is not computed from a batch, or
                does not fit the table.
        """
        batch = current_batch(context)
        frame, rows = _counted(_data_frame(context, obj))
        table = _table(context.asset_key, context.definition_metadata)
        with clear_executor_errors():
            PostgresSink(
                table,
                key=self.key,
                mode=self.mode,
                stage_schema=self.stage_schema,
                # So that several assets of a batch can have one table.
                name=context.asset_key.to_user_string(),
            ).write(batch, frame)
        context.add_output_metadata({TABLE: table, ROWS: rows()})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns the whole table as a DataFrame, read by the driver; numeric columns as text."""
        made = context.upstream_output
        table = _table(context.asset_key, made.definition_metadata if made else None)
        name = sql.Identifier(*table.split(".")).as_string(None)
        with dbapi.connect(self.pgque.database_url()) as connection, connection.cursor() as cursor:
            cursor.execute(f"table {name}")
            rows = _plain(cursor.fetch_arrow_table())
        return SparkSession.builder.getOrCreate().createDataFrame(rows)


def _plain(table: pa.Table) -> pa.Table:
    """Casts columns of extension types, which Arrow does not know, to their storage types."""
    for place, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            column = table.column(place).cast(field.type.storage_type)
            table = table.set_column(place, field.name, column)
    return table


def _table(key: dg.AssetKey, metadata: Any) -> str:
    named = (metadata or {}).get(TABLE)
    return str(getattr(named, "value", named) or key.path[-1])


def _data_frame(context: dg.OutputContext, value: object) -> DataFrame:
    if not isinstance(value, DataFrame):
        raise InvalidArgument(
            f"{context.asset_key.to_user_string()} returned {type(value).__name__}",
            "Return a Spark DataFrame.",
        )
    return value


def _counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Has Spark count the rows while it writes them. Call the function after the write."""
    seen = Observation()
    return frame.observe(seen, f.count(f.lit(1)).alias("rows")), lambda: int(seen.get["rows"])
