"""A directory of Parquet, and attempts to store batches there."""

from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client import Batch, Client
from pgque_dagster.spark import ParquetSink, SparkBatch
from tests.support.queues.events import claim, publish


class Place:
    """A location of a table, and attempts to store batches there."""

    def __init__(self, spark: SparkSession, location: object) -> None:
        self.spark, self.location = spark, str(location)
        self.sink = ParquetSink(self.location)

    def at(self, path: str) -> "Place":
        return Place(self.spark, f"{self.location}/{path}")

    def write(self, claimed: Batch, rows: int | DataFrame) -> str:
        """Stores the numbers below this one, or a DataFrame."""
        frame = self.spark.range(rows) if isinstance(rows, int) else rows
        return self.sink.write(SparkBatch(self.spark, claimed, claimed.session.url), frame)

    def attempt(self, client: Client, rows: int | DataFrame) -> Batch:
        """Claims the open batch, or the next one, and writes it."""
        claimed = claim(client)
        self.write(claimed, rows)
        return claimed

    def store(self, client: Client, rows: int | DataFrame) -> Batch:
        """Publishes an event, stores the batch and acks it."""
        publish(client, ["a"])
        claimed = self.attempt(client, rows)
        claimed.ack()
        return claimed

    def rows(self) -> list[tuple[int, int]]:
        """Batch and number of each row, as Arrow finds them."""
        found = ds.dataset(self.location, format="parquet").to_table().to_pylist()
        return sorted((row["batch_id"], row["id"]) for row in found)

    @property
    def aside(self) -> Path:
        """Where attempts write, beside the table."""
        location = Path(self.location)
        return location.with_name(f".{location.name}.pgque")

    def visible(self) -> list[str]:
        """The Parquet files that a plain pattern finds."""
        return [str(path) for path in Path(self.location).rglob("*.parquet") if path.is_file()]

    def files(self) -> list[str]:
        """All Parquet files that are there, whether they count or not."""
        return self.visible() + [str(path) for path in self.aside.rglob("*.parquet")]

    def rename_mark(self, old: object, new: object) -> None:
        """Has the incarnation of another database own the batches."""
        marks = Path(self.location, "_pgque/lineages")
        (marks / str(old)).rename(marks / str(new))


def everything(spark: SparkSession, table: str | Path) -> DataFrame:
    """The table as somebody's Spark reads it."""
    return spark.read.option("recursiveFileLookup", "true").parquet(str(table))


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())
