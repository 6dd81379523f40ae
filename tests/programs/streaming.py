"""A Spark driver that streams the queue `orders` into Parquet, and kills itself on the way.

python -m tests.programs.streaming <url> <checkpoint> <target> <before or after>

It ends before, or after, it has stored a micro-batch that has events.
"""

import os
import sys
from pathlib import Path
from signal import SIGKILL

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark.streams import Stream


def store(target: str, end: str | None, events: DataFrame, number: int) -> None:
    """A directory a micro-batch, replaced when it comes again."""
    is_at_work = not events.isEmpty()
    for moment in ("before", "after"):
        if moment == "after":
            events.select("ev_id", "ev_data").write.mode("overwrite").parquet(f"{target}/{number}")
        if end == moment and is_at_work:
            os.killpg(os.getpid(), SIGKILL)


def main() -> None:
    url, checkpoint, target, end = sys.argv[1:5]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    stream = Stream(spark, url, Path(checkpoint), max_events="100")
    query = stream.start(lambda events, number: store(target, end, events, number))
    query.awaitTermination()


if __name__ == "__main__":
    main()
