"""The Spark data source `pgque`: one open batch, read in parallel by its read plan.

`spark.read.format("pgque").options(url=…, batch_id=…).load()`. The package must be installed where
the executors run.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..client import Client
from ..client.errors import InvalidArgument
from . import wire

DEFAULT_SLICES = 4


@dataclass
class SlicePartition(InputPartition):
    """One slice of a batch; the text is empty where the batch is."""

    slice_sql: str


@dataclass(frozen=True)
class ReadOptions:
    """The data source's options, read and checked.

    Attributes:
        url: libpq URI or connection string. Spark redacts options with such a name.
        batch_id: the open batch to read.
        slices: how many partitions at the most.
        columns: event columns to read.
        plan: slices that were planned before, to spare planning twice.
    """

    url: str
    batch_id: int
    slices: int
    columns: tuple[str, ...]
    plan: tuple[str, ...] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Reads Spark's options.

        Raises:
            InvalidArgument: if one is missing, or not of its form.
        """
        missing = [name for name in ("url", "batch_id") if not options.get(name)]
        if missing:
            raise InvalidArgument(
                f"format('pgque') lacks the option {' and '.join(missing)}",
                "Pass .options(url=…, batch_id=…).",
            )
        columns = options.get("columns")
        plan = options.get("plan")
        return cls(
            url=options["url"],
            batch_id=_positive(options, "batch_id", 0),
            slices=_positive(options, "slices", DEFAULT_SLICES),
            columns=wire.check_columns(
                [column.strip() for column in columns.split(",")] if columns else None
            ),
            plan=tuple(json.loads(plan)) if plan else None,
        )


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidArgument(
            f"option {name} of format('pgque') is {text!r}", "It is a whole number above 0."
        )
    return int(text)


class PgqueReader(DataSourceReader):
    """Plans on the driver, reads on the executors. Only picklable facts cross."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[SlicePartition]:
        """Returns one partition a slice; for an empty batch one without text: Spark needs one."""
        slices = self._options.plan
        if slices is None:
            with Client(self._options.url) as client:
                slices = client.read_plan(self._options.batch_id, self._options.slices).slices
        return [SlicePartition(slice_sql) for slice_sql in slices or ("",)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one slice."""
        if not isinstance(partition, SlicePartition) or not partition.slice_sql:
            return iter(())
        return wire.read_slice(self._options.url, partition.slice_sql, self._options.columns)


class PgqueDataSource(DataSource):
    """The data source that `register` makes known as `pgque`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format()`."""
        return "pgque"

    def schema(self) -> str:
        """Returns the columns asked for, as DDL."""
        return wire.spark_schema(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> PgqueReader:
        """Returns the reader."""
        return PgqueReader(ReadOptions.parse(self.options))


def register(spark: SparkSession) -> None:
    """Makes `format("pgque")` known to a session. Doing it again changes nothing."""
    spark.dataSource.register(PgqueDataSource)
