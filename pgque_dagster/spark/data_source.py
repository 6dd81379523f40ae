"""The Spark data source `pgque`: an open batch, read in parallel by its plan.

`spark.read.format("pgque").options(url=…, batch_id=…).load()`. The executors need this package.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from ..client import Client, plans
from .cluster.session import check_open
from .options import ReadOptions, WriteOptions
from .reading import arrow
from .streaming.reader import PgqueStreamReader
from .writing.writer import PgqueWriter

_NO_COLUMNS = StructType()


class PgqueReader(DataSourceReader):
    """Plans on the driver and reads on the executors, so it has only picklable attributes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Returns one partition per slice, and at least one, because Spark needs one.

        Raises:
            BatchNotOpen: if the batch was finished, or no batch has this id.
        """
        with Client(self._options.address.resolve()) as client:
            call = plans.read_plan(self._options.batch_id, self._options.slices)
            slices = client.run(call).slices
        return [InputPartition(part) for part in slices or (None,)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one slice."""
        if partition.value is None:
            return iter(())
        url = self._options.address.resolve()
        return arrow.read_slice(url, partition.value, self._options.columns)


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
        """Returns the reader of a streaming query; it refuses wrong options when the query runs."""
        return stream_reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> PgqueWriter:
        """Returns the writer, which has opened a staging table."""
        return PgqueWriter(WriteOptions.parse(self.options), schema, overwrite)


def stream_reader(options: Mapping[str, str]) -> PgqueStreamReader:
    """Returns the reader for this version of Spark."""
    try:
        from .streaming.limited_reader import LimitedStreamReader
    except ImportError:
        return PgqueStreamReader(options)
    return LimitedStreamReader(options)


def register(spark: SparkSession) -> None:
    """Registers `format("pgque")` in a session. Calling it again changes nothing.

    For a write, a classic session looks the format up in the thread's active session. So this
    function also makes `spark` the active session: call it in each thread that writes.

    Raises:
        InvalidArgument: if the session was stopped.
    """
    check_open(spark)
    spark.dataSource.register(PgqueDataSource)
    # The one public method that makes a session active in this thread.
    spark.createDataFrame([], _NO_COLUMNS)
