"""The reader of a stream whose options are wrong: its query fails with the reason."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...client.errors import InvalidArgument


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the reason at the first call of the query.

    If `DataSource.streamReader` raised it, Spark would show it below its own UnboundLocalError.

    Args:
        reason: the error to raise.
    """

    def __init__(self, reason: InvalidArgument) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Refuses a query without a checkpoint."""
        raise self._reason

    def latestOffset(self, *args: Any) -> NoReturn:  # noqa: N802
        """Refuses a query that continues after its last micro-batch."""
        raise self._reason

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Refuses a query that repeats its last micro-batch."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Is never called, since there is no partition."""
        raise self._reason
