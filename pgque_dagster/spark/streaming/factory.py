"""Chooses the stream reader that the installed PySpark can run."""

import pyspark

from ...client.errors import InvalidArgument
from .options import StreamOptions
from .reader import PgqueStreamReader


def stream_reader(options: StreamOptions) -> PgqueStreamReader:
    """Returns the reader for this version of Spark.

    Raises:
        InvalidArgument: if max_events is given, but this version of Spark has no limits.
    """
    try:
        from .limited_reader import LimitedStreamReader
    except ImportError as error:
        if options.max_events is not None:
            raise InvalidArgument(
                f"PySpark {pyspark.__version__} cannot limit micro-batches to "
                f"{options.max_events} events",
                "Leave max_events out, or use PySpark 4.2 or newer.",
            ) from error
        return PgqueStreamReader(options)
    return LimitedStreamReader(options)
