"""A program that compacts a directory of Parquet, and is stopped or killed on the way.

python -m tests.support.compacting_driver <url> <location> <signal> <point> <file>

As for `publishing_driver`.
"""

import os
import sys
from pathlib import Path
from signal import Signals

from pyspark.sql import SparkSession

from pgque_dagster.spark import ParquetSink
from pgque_dagster.spark.sinks.files import compaction
from tests.support.publishing_driver import At, signalling

GATHERING = "while it gathers directories"
CLOSING = "before it closes the gathering"
EXCHANGING, EXCHANGED = "before it exchanges the directories", "after it exchanged them"
POINTS = (GATHERING, CLOSING, EXCHANGING, EXCHANGED)


def watch(at: At) -> None:
    """Tells the points from now on."""
    rename, exchange = Path.rename, compaction._exchange

    def renaming(path: Path, target: Path) -> Path:
        if target.name.startswith("united-"):
            at(CLOSING)
        renamed = rename(path, target)
        if target.parent.name.startswith("gathering-"):
            at(GATHERING)
        return renamed

    def exchanging(one: Path, other: Path) -> None:
        is_unit = other.name.startswith("united-")
        if is_unit:
            at(EXCHANGING)
        exchange(one, other)
        if is_unit:
            at(EXCHANGED)

    setattr(Path, "rename", renaming)  # noqa: B010
    setattr(compaction, "_exchange", exchanging)  # noqa: B010


def main() -> None:
    url, location, signal, point, once = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    watch(signalling(os.getpid(), Signals[signal], point, Path(once)))
    ParquetSink(location).maintain(url)


if __name__ == "__main__":
    main()
