"""What the IO managers of batches share.

`batch_safe` declares that they store each batch once: the assets refuse an IO manager without it,
unless the asset has it. They only call the sinks. `spark/sinks/` describes how storing works and
what a crash can leave behind.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import dagster as dg
from pyspark.sql import DataFrame

from .. import spark
from ..client import InvalidArgument
from ..project.keys import TABLE
from ..project.step_errors import log_error_line, noting_what_passes
from ..spark.cluster.executor_errors import clear_executor_errors
from .current_batch import current_batch
from .metadata import set_aside
from .outputs import class_name


class BatchIOManager(dg.ConfigurableIOManager):
    """Stores the DataFrame of a batch in a sink."""

    batch_safe: ClassVar[bool] = True
    checks_batch: ClassVar[bool] = True
    pyspark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]
    """The resource that the assets use, for steps that load an asset in a separate process."""

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame, replacing what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is not a DataFrame, is not computed from a batch, or does
                not fit the stored data.
        """
        # Dagster calls an IO manager outside the block of the step that logs errors.
        instance = context.step_context.instance
        with log_error_line(context.log), noting_what_passes(instance, context.run_id):
            batch = current_batch(context)
            if not isinstance(obj, DataFrame):
                raise InvalidArgument(
                    f"{context.asset_key.to_user_string()} returned {class_name(obj)}",
                    "Return a Spark DataFrame: batch.spark.createDataFrame makes one of rows, of a "
                    "pandas DataFrame or of an Arrow table.",
                )
            key, metadata = context.asset_key, context.definition_metadata
            sink = self.sink_of(key, metadata, over_shards=bool(batch.claim.shards))
            with clear_executor_errors():
                stored = self._store(sink, batch, obj)
        context.add_output_metadata({**stored, **set_aside(batch.claim)})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns the stored data of the input, or the batches of it that the input requests.

        Raises:
            InvalidArgument: if there is no Spark session, or requested batches are not available.
        """
        with log_error_line(context.log):
            return self._load(context)

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> Any:
        """Returns the sink of an asset's table.

        Args:
            key: the asset's key.
            metadata: the asset's metadata.
            over_shards: whether the sink stores the batches of several shards.
        """
        raise NotImplementedError

    def _store(self, sink: Any, batch: "spark.SparkBatch", frame: DataFrame) -> dict[str, Any]:
        """Stores the rows in the sink; returns metadata of the output."""
        raise NotImplementedError

    def _load(self, context: dg.InputContext) -> DataFrame:
        """Loads an input."""
        raise NotImplementedError


def named_table(metadata: Mapping[str, Any]) -> str | None:
    """Returns the table that an asset's metadata name."""
    named = metadata.get(TABLE)
    return str(getattr(named, "value", named)) if named else None


def upstream_metadata(context: dg.InputContext) -> Mapping[str, Any]:
    """Returns the metadata of the input's asset."""
    made = context.upstream_output
    return (made.definition_metadata if made else None) or {}
