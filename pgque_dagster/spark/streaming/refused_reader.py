"""A stream whose options cannot be used: the query ends with the reason."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...client.errors import InvalidArgument


class RefusedStreamReader(DataSourceStreamReader):
    """Raises the reason at the first thing that a query asks it for.

    What `DataSource.streamReader` itself raises, Spark shows below an UnboundLocalError of its own.

    Args:
        reason: what to raise.
    """

    def __init__(self, reason: InvalidArgument) -> None:
        self._reason = reason

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Refuses a query without a checkpoint."""
        raise self._reason

    def latestOffset(self, *args: Any) -> NoReturn:  # noqa: N802
        """Refuses a query that goes on after its last micro-batch."""
        raise self._reason

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Refuses a query that repeats its last micro-batch."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Is not reached, since there is no partition."""
        raise self._reason
