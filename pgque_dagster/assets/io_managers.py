"""IO managers for Parquet directories and for tables in the queue's database."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import dagster as dg
from pydantic import Field, model_validator
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from .. import spark
from ..client import InvalidArgument
from ..project.keys import BATCHES, ROWS, TABLE
from ..project.resource import PgqueResource
from ..spark.address import DatabaseAddress
from ..spark.sinks.modes import check_directory
from ..spark.sinks.postgres.merge import Mode
from .batch_io_manager import BatchIOManager, named_table, upstream_metadata
from .inputs import session_of, wanted_batches
from .step import executors_address


class ParquetBatchIOManager(BatchIOManager):
    """Writes DataFrames of `@pgque_asset` as Parquet, in `<base_dir>/<asset>`.

    Readers see the directory as one table, with the column `batch_id`. `ParquetSink` describes what
    remains when an attempt is killed or stopped. For an object store, many small batches, or
    several databases, use `DeltaBatchIOManager` or `IcebergBatchIOManager`.

    A downstream asset gets all batches. With `pgque/batches` in the metadata of its input, it gets
    only batches that it has not read (`new`), or that the same run stored (`run`):

    .. code-block:: python

        @dg.asset(ins={"revenue": dg.AssetIn(metadata={"pgque/batches": "new"})})
        def report(revenue: DataFrame) -> None: ...
    """

    base_dir: str = Field(description="A directory that driver and executors share.")

    @model_validator(mode="after")
    def _check_base_dir(self) -> Self:
        check_directory(self.base_dir)
        return self

    def _store(self, sink: Any, batch: "spark.SparkBatch", frame: DataFrame) -> dict[str, Any]:
        counted, rows = _counted(frame)
        path = sink.write(batch, counted)
        return {"path": dg.MetadataValue.path(path), ROWS: rows()}

    def _load(self, context: dg.InputContext) -> DataFrame:
        wanted = wanted_batches(context)
        sink = self.sink_of(context.asset_key, {})
        return sink.read(session_of(self.pyspark, context), batches=wanted)

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> "spark.ParquetSink":
        """Returns the sink of an asset's table.

        Raises:
            InvalidArgument: if it would store the batches of several databases.
        """
        location = "/".join((self.base_dir.rstrip("/"), *key.path))
        if over_shards:
            # Imported late, so that a code location loads without Arrow.
            from ..spark.sinks.files.record import of_shards

            raise of_shards(location)
        return spark.ParquetSink(location)


class PostgresBatchIOManager(BatchIOManager):
    """Merges DataFrames of `@pgque_asset` into tables of the queue's database, exactly once.

    The IO manager stages the rows. They are merged into the table in the transaction of the batch's
    ack, so a run that dies at any point leaves both or neither. Downstream assets in the same run
    start after the ack and see the rows.

    The table's name is the asset's metadata `dagster/table_name`, or the last part of the asset's
    key. The table must exist; `upsert` and `add` need a unique index on the key. The role needs
    INSERT on the table, also SELECT and UPDATE for `upsert` and `add`, and CREATE in the table's
    schema or in `stage_schema`.

    The result of an asset over several databases is merged into a table in the database of `pgque`.
    The same transaction records in the table `pgque_sink_ledger` what it stores.

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

    def _store(self, sink: Any, batch: "spark.SparkBatch", frame: DataFrame) -> dict[str, Any]:
        counted, rows = _counted(frame)
        sink.write(batch, counted)
        return {TABLE: sink.table, ROWS: rows()}

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> "spark.PostgresSink":
        """Returns the sink of an asset's table."""
        return spark.PostgresSink(
            named_table(metadata) or key.path[-1],
            key=self.key,
            mode=self.mode,
            url=self._address() if over_shards else None,
            stage_schema=self.stage_schema,
            # Lets several assets of a batch share a table.
            name=key.to_user_string(),
        )

    def _load(self, context: dg.InputContext) -> DataFrame:
        """Returns the current content of the whole table, read by tasks in one snapshot."""
        from ..spark.reading.table import read_whole_table

        if wanted_batches(context) is not None:
            raise InvalidArgument(
                f"the table of {context.asset_key.to_user_string()} has no batches to choose from",
                f"Leave {BATCHES} out of the metadata of the input.",
            )
        table = named_table(upstream_metadata(context)) or context.asset_key.path[-1]
        session = session_of(self.pyspark, context)
        return read_whole_table(session, self.pgque.database_url(), self._address(), table)

    def _address(self) -> DatabaseAddress:
        return executors_address(self.pgque, self.pgque.database_url())


def _counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Makes Spark count rows as it writes them; the returned function then gives their number."""
    seen = Observation()
    return frame.observe(seen, f.count(f.lit(1)).alias("rows")), lambda: int(seen.get["rows"])
