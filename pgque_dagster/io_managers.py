"""Stores what an asset makes of a batch so that doing it again changes nothing.

One directory a batch, written aside and renamed into place: readers never see part of a batch, and
a second attempt replaces the first one's files. A crash between the two renames leaves the batch
out until its next attempt, which is due since it is not acked.
"""

import shutil
import uuid
from pathlib import Path

import dagster as dg
from pydantic import Field
from pyspark.sql import DataFrame, SparkSession

from .client import InvalidArgument
from .tags import BATCH_ID


class ParquetBatchIOManager(dg.ConfigurableIOManager):
    """Writes DataFrames of `@pgque_asset` as Parquet, in `<base_dir>/<asset>/batch_id=<id>/`.

    A reader of `<base_dir>/<asset>` sees one table, with the column batch_id.
    """

    base_dir: str = Field(description="A directory that driver and executors share.")

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Stores a batch's DataFrame in the place of what an earlier attempt stored.

        Raises:
            InvalidArgument: if the output is no DataFrame, or is not of a batch.
        """
        batch_id = context.output_metadata.get(BATCH_ID)
        if batch_id is None:
            raise InvalidArgument(
                f"{context.asset_key.to_user_string()} is not made of a batch",
                "Use this IO manager for assets made with @pgque_asset.",
            )
        if not isinstance(obj, DataFrame):
            raise InvalidArgument(
                f"{context.asset_key.to_user_string()} returned {type(obj).__name__}",
                "Return a Spark DataFrame.",
            )
        target = self._directory(context.asset_key) / f"batch_id={batch_id.value}"
        # Readers pass over names with a dot in front.
        aside = target.parent / f".{target.name}.{uuid.uuid4().hex}"
        _remove_leftovers(target)
        try:
            obj.write.parquet(str(aside))
            _replace(target, aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        context.add_output_metadata({"path": dg.MetadataValue.path(str(target))})

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Returns all batches stored so far as one DataFrame."""
        spark = SparkSession.builder.getOrCreate()
        return spark.read.parquet(str(self._directory(context.asset_key)))

    def _directory(self, key: dg.AssetKey) -> Path:
        return Path(self.base_dir).joinpath(*key.path)


def _replace(target: Path, new: Path) -> None:
    old = target.parent / f".old{new.name}"
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Removes what attempts at the same batch left that were killed while they wrote."""
    for leftover in target.parent.glob(f".*{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
