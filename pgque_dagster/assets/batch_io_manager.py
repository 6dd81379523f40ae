"""What the IO managers of batches share.

`batch_safe` says that they store each batch once: the assets refuse IO managers without it, unless
the asset has it. They only call the sinks. `spark/sinks/` says how storing works and what a crash
can leave behind.
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
    """Stores the DataFrame of a batch by a sink."""

    batch_safe: ClassVar[bool] = True
    checks_batch: ClassVar[bool] = True
    pyspark: dg.ResourceDependency[Any] = None  # type: ignore[assignment]
    """The resource that the assets use, for steps that load an asset in a process of their own."""

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame. Replaces what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is not a DataFrame, or is not computed from a batch, or
                does not fit what is stored there.
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
            with clear_executor_errors():
                stored = self._store(context, batch, obj)
        context.add_output_metadata({**stored, **set_aside(batch.claim)})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns what is stored of the input, or those batches of it that the input wants.

        Raises:
            InvalidArgument: if there is no Spark session, or what the input wants cannot be given.
        """
        with log_error_line(context.log):
            return self._load(context)

    def sink_of(
        self, key: dg.AssetKey, metadata: Mapping[str, Any], *, over_shards: bool = False
    ) -> Any:
        """Returns the sink of an asset's table.

        Args:
            key: of the asset.
            metadata: of the asset.
            over_shards: whether it is to store the batches of several shards.
        """
        raise NotImplementedError

    def _store(
        self, context: dg.OutputContext, batch: "spark.SparkBatch", frame: DataFrame
    ) -> dict[str, Any]:
        """Stores the rows; returns metadata of the output."""
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
