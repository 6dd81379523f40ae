"""The Spark data source `pgque`: an open batch or a range of ticks, read in parallel by its plan.

`spark.read.format("pgque").options(url=…, batch_id=…).load()`. The package must be installed where
the executors run.
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
from .payload.parsing import PayloadRead
from .reading import arrow
from .reading.options import ReadOptions
from .streaming.factory import stream_reader
from .streaming.options import StreamOptions
from .streaming.refused_reader import RefusedStreamReader
from .writing.writer import PgqueWriter, WriteOptions

_NO_COLUMNS = StructType()


@dataclass
class SlicePartition(InputPartition):
    """One slice of what is read; None where there is nothing to read: Spark needs a partition."""

    part: Slice | None


class PgqueReader(DataSourceReader):
    """Plans on the driver, reads on the executors. Only picklable facts cross."""

    def __init__(self, options: ReadOptions, payloads: PayloadRead | None) -> None:
        self._options = options
        self._payloads = payloads

    def partitions(self) -> list[SlicePartition]:
        """Returns one partition a slice.

        Raises:
            BatchNotOpen: if the batch was finished, or there is none of that id.
            BatchLeased: if the option `owner` is given, and somebody else holds the batch.
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
        events = arrow.read_slice(url, partition.part, self._options.columns)
        return events if self._payloads is None else self._payloads.batches(events)


def _check_lease(client: Client, options: ReadOptions) -> None:
    assert options.batch_id is not None
    batch = client.batch_info(options.batch_id)
    lease = client.lease_info(batch.queue, batch.consumer)
    if lease and lease.is_live and lease.owner != options.owner:
        raise BatchLeased(
            f"batch {options.batch_id} of {batch.queue}/{batch.consumer} is held by "
            f"{lease.owner!r} until {lease.until:%Y-%m-%d %H:%M:%S %Z}",
            f"Claim it as {options.owner!r} when that lease ended, or leave the option owner out.",
        )


class PgqueDataSource(DataSource):
    """The data source that `register` makes known as `pgque`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format()`."""
        return "pgque"

    def schema(self) -> StructType:
        """Returns the columns asked for, or those of parsed payloads."""
        if payloads := PayloadRead.parse(self.options):
            return payloads.schema()
        return arrow.spark_schema(arrow.parse_columns(self.options.get("columns")))

    def reader(self, schema: StructType) -> PgqueReader:
        """Returns the reader."""
        return PgqueReader(ReadOptions.parse(self.options), PayloadRead.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Returns the reader of a streaming query, which may refuse it."""
        try:
            return stream_reader(StreamOptions.parse(self.options))
        except InvalidArgument as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> PgqueWriter:
        """Returns the writer, which has a place to write to."""
        return PgqueWriter(WriteOptions.parse(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Makes `format("pgque")` known to a session. Doing it again changes nothing.

    A classic session looks up what it writes to in the session that is active in the thread, so
    this also makes `spark` the active one: call it in each thread that writes.
    """
    spark.dataSource.register(PgqueDataSource)
    # The one public method that makes a session active in this thread.
    spark.createDataFrame([], _NO_COLUMNS)
