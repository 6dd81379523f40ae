"""The Spark data source `pgque`: an open batch or a range of ticks, read in parallel by its plan.

`spark.read.format("pgque").options(url=…, batch_id=…).load()`. The executors need this package.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from ..client import Client
from ..client.errors import BatchLeased, InvalidArgument
from ..client.models import Slice
from .reading import arrow
from .reading.options import ReadOptions
from .streaming.factory import stream_reader
from .streaming.options import StreamOptions
from .streaming.refused_reader import RefusedStreamReader
from .writing.writer import PgqueWriter, WriteOptions

_NO_COLUMNS = StructType()


@dataclass
class SlicePartition(InputPartition):
    """A slice to read; None if there is nothing to read, since Spark needs a partition."""

    part: Slice | None


class PgqueReader(DataSourceReader):
    """Plans on the driver and reads on the executors, so it has only picklable attributes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[SlicePartition]:
        """Returns one partition per slice.

        Raises:
            BatchNotOpen: if the batch was finished, or no batch has this id.
            BatchLeased: if the option `owner` is given and another owner holds the batch.
        """
        slices = self._options.plan
        if slices is None:
            with Client(self._options.address.resolve()) as client:
                if self._options.owner is not None:
                    _check_lease(client, self._options)
                slices = client.run(self._options.read_plan()).slices
        return [SlicePartition(part) for part in slices or (None,)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one slice."""
        if not isinstance(partition, SlicePartition) or partition.part is None:
            return iter(())
        url = self._options.address.resolve()
        return arrow.read_slice(url, partition.part, self._options.columns)


def _check_lease(client: Client, options: ReadOptions) -> None:
    assert options.batch_id is not None
    batch = client.batch_info(options.batch_id)
    lease = client.lease_info(batch.queue, batch.consumer)
    if lease and lease.is_live and lease.owner != options.owner:
        raise BatchLeased(
            f"batch {options.batch_id} of {batch.queue}/{batch.consumer} is held by "
            f"{lease.owner!r} until {lease.until:%Y-%m-%d %H:%M:%S %Z}",
            f"Claim it as {options.owner!r} after the lease ends, or omit the option owner.",
        )


class PgqueDataSource(DataSource):
    """The data source that `register` registers as `pgque`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format()`."""
        return "pgque"

    def schema(self) -> StructType:
        """Returns the chosen event columns."""
        return arrow.spark_schema(arrow.parse_columns(self.options.get("columns")))

    def reader(self, schema: StructType) -> PgqueReader:
        """Returns the reader."""
        return PgqueReader(ReadOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Returns the reader of a streaming query; it refuses wrong options once the query runs."""
        try:
            return stream_reader(StreamOptions.parse(self.options))
        except InvalidArgument as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> PgqueWriter:
        """Returns the writer, which has opened a staging table."""
        return PgqueWriter(WriteOptions.parse(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Registers `format("pgque")` in a session. Calling it again changes nothing.

    For a write, a classic session looks the format up in the thread's active session. So this
    function also makes `spark` the active session: call it in each thread that writes.
    """
    spark.dataSource.register(PgqueDataSource)
    # The one public method that makes a session active in this thread.
    spark.createDataFrame([], _NO_COLUMNS)
