"""Opens the Spark session of a resource, with the driver's Python on the executors."""

import os
import sys
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from .java import check_java


def open_session(resource: Any) -> SparkSession:
    """Returns the session of a resource such as dagster-pyspark's.

    Args:
        resource: anything with a `spark_session`.

    Raises:
        JavaMissing: if Spark cannot start because Java is missing or too old.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        session: SparkSession = resource.spark_session
    except PySparkRuntimeError:
        check_java()
        raise
    return session
