"""Delta and Iceberg tables that batches are stored in, read by the library of the format alone."""

import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pgque_dagster.client import Client
from pgque_dagster.spark import DeltaSink, IcebergSink, SparkBatch
from pgque_dagster.spark.sinks.delta.commit import DeltaOutput
from pgque_dagster.spark.sinks.iceberg.commit import IcebergOutput
from tests.support.queues.events import claim
from tests.support.spark.attempts import again, next_batch
from tests.support.spark.delta_tables import same_rows
from tests.support.spark.in_process import Rows, without_tasks
from tests.support.spark.stored_tables import iceberg_catalog

SCHEMA = "number bigint, name string"
ROWS = pa.schema([("number", pa.int64()), ("name", pa.string())])
TABLE = "sales.revenue"
OLD_SECONDS = 8 * 86400


class Lake:
    """A table of the columns number and name, and attempts to store batches in it."""

    table: Callable[[], Any]  # opens it by the format's library
    sink: Callable[..., Any]

    def __init__(self, client: Client, spark: SparkSession, folder: Path) -> None:
        self.client, self.spark, self.folder = client, spark, folder
        self.location = str(folder / "table")

    def batch(self, *numbers: int) -> SparkBatch:
        """A claimed batch of rows with these numbers."""
        payloads = [{"number": number, "name": "x"} for number in numbers]
        return next_batch(self.client, self.spark, payloads)

    def again(self, batch: SparkBatch) -> SparkBatch:
        return again(self.client, self.spark, batch)

    def write(self, batch: SparkBatch, *columns: str, where: str = "true", **options: Any) -> Any:
        frame: Any
        if columns or where != "true":
            frame = batch.payload(SCHEMA).where(where).selectExpr(*(columns or "*"))
        else:
            events = [event.json() for event in batch.claim.events()]
            frame = Rows(pa.Table.from_pylist(events, ROWS), StructType.fromDDL(SCHEMA))
        with without_tasks():
            return self.sink(**options).write(batch, frame)

    def store(self, *numbers: int, **options: Any) -> SparkBatch:
        """Stores a batch and acks it."""
        batch = self.batch(*numbers)
        self.write(batch, **options)
        batch.claim.ack()
        return batch

    def take_over(self, batch: SparkBatch, *columns: str, **options: Any) -> None:
        """Has another attempt at the batch store it and ack it."""
        later = self.again(batch)
        self.write(later, *columns, **options)
        later.claim.ack()

    def arrow(self) -> pa.Table:
        raise NotImplementedError

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.arrow()
        columns = (found[name].to_pylist() for name in ("number", "name", "batch_id"))
        return sorted(zip(*columns, strict=True))

    def numbers(self) -> list[int]:
        return sorted(self.arrow()["number"].to_pylist())

    def maintain(self, **options: Any) -> list[str]:
        """Maintains the table. Returns the files that were deleted."""
        return list(self.sink().maintain(self.spark, self.client.url, **options).deleted)

    def compact(self) -> None:
        assert self.sink().maintain(self.spark, self.client.url).by == 1

    def files(self) -> set[Path]:
        """The data files that are there, whether they count or not."""
        return set(self.folder.rglob("data/*/*.parquet"))


class DeltaLake(Lake):
    output = DeltaOutput

    def sink(self, **options: Any) -> DeltaSink:
        return DeltaSink(self.location, **options)

    def table(self) -> DeltaTable:
        return DeltaTable(self.location)

    def arrow(self) -> pa.Table:
        return same_rows(self.table())

    def read(self) -> DataFrame:
        return self.sink().read(self.spark)

    def commits(self) -> int:
        return int(self.table().version())

    def counted(self) -> set[Path]:
        """The files that the table has."""
        return {Path(uri) for uri in self.table().file_uris()}

    def adopt(self, incarnation: object) -> None:
        properties = {"pgque.lineage": str(incarnation)}
        self.table().alter.set_table_properties(properties, raise_if_not_exists=False)

    def drop(self) -> None:
        Path(self.location, "_delta_log").rename(self.folder / "gone")


class IcebergLake(Lake):
    output = IcebergOutput

    def sink(self, **options: Any) -> IcebergSink:
        return IcebergSink(TABLE, **{"warehouse": self.folder, **options})

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, once it is there."""
        return iceberg_catalog(self.client.url)

    def table(self, name: str = TABLE) -> Any:
        return self.catalog.load_table(name)

    def arrow(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def read(self) -> DataFrame:
        return self.sink().read(self.spark, self.client.url)

    def commits(self) -> int:
        return len(self.table().metadata.metadata_log)

    def counted(self) -> set[Path]:
        tasks = self.table().scan().plan_files()
        return {Path(task.file.file_path.removeprefix("file://")) for task in tasks}

    def adopt(self, incarnation: object) -> None:
        with self.table().transaction() as change:
            change.set_properties({"pgque.lineage": str(incarnation)})

    def drop(self) -> None:
        self.catalog.drop_table(TABLE)


def age(folder: Path, seconds: float = OLD_SECONDS) -> None:
    """Makes all files look as if they were written long ago."""
    for path in folder.rglob("*.parquet"):
        os.utime(path, (time.time() - seconds,) * 2)


def of_another(lake: Any) -> SparkBatch:
    """The next batch of the other consumer."""
    return SparkBatch(lake.spark, claim(lake.client, consumer="another"), lake.client.url)
