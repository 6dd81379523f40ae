"""Opens the Spark session of a resource, with the driver's Python on the executors."""

import logging
import os
import sys
from typing import Any

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ...client.errors import InvalidArgument
from . import class_archive
from .java import check_java

logger = logging.getLogger("pgque.spark")

# The session that this process opened last; a later run gets it, too.
_opened: SparkSession | None = None


def open_session(resource: Any) -> SparkSession:
    """Returns the `spark_session` of a resource such as dagster-pyspark's.

    Raises:
        JavaMissing: if Spark cannot start because Java is missing or too old.
        InvalidArgument: if the resource holds a session that was stopped.
    """
    global _opened
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Progress bars would hide what Dagster prints. The settings of the session win over this one.
    no_bars = "--conf spark.ui.showConsoleProgress=false pyspark-shell"
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", no_bars)
    if is_remote():
        if _opened is not None:
            _close_if_lost(_opened)
    elif _opened is None:
        class_archive.use()
    try:
        session: SparkSession = resource.spark_session
    except PySparkRuntimeError:
        if is_remote():
            raise
        check_java()
        if not class_archive.discard():
            raise
        session = resource.spark_session
    check_open(session)
    _opened = session
    return session


def check_open(session: SparkSession) -> None:
    """Refuses a session that was stopped or lost its JVM. Spark Connect reports this itself."""
    if is_remote():
        return
    try:
        session.sparkContext.defaultParallelism  # noqa: B018
    except Exception as error:
        raise InvalidArgument(
            "this Spark session was stopped, or its JVM has ended",
            "Make a new one with SparkSession.builder.getOrCreate(). In a Dagster run, remove "
            "spark.stop(), and restart the process that holds the session.",
        ) from error


def _close_if_lost(session: SparkSession) -> None:
    """Closes a session that the Connect server no longer has.

    The server forgets all sessions when it restarts, and sessions that were idle for an hour.
    PySpark would keep returning such a session until it is closed.
    """
    try:
        session.conf.get("spark.sql.session.timeZone")
    except PySparkException as error:
        logger.warning("Opening a new Spark Connect session, since the last one ended: %s", error)
        session.stop()
