"""A Spark driver of its own that streams the queue `orders` into Parquet, to be killed.

    python -m tests.support.stream_driver URL CHECKPOINT TARGET [before|after]

With a fourth argument it says so and hangs before, or after, it has stored a micro-batch that has
events.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.support.streams import Stream

HANGS = "in the middle of a micro-batch"


def store(target: str, hang: str | None, events: DataFrame, number: int) -> None:
    """A directory a micro-batch, replaced when it comes again."""
    is_at_work = not events.isEmpty()
    for moment in ("before", "after"):
        if moment == "after":
            events.select("ev_id", "ev_data").write.mode("overwrite").parquet(f"{target}/{number}")
        if hang == moment and is_at_work:
            print(HANGS, flush=True)
            time.sleep(600)


def main(url: str, checkpoint: str, target: str, hang: str | None = None) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    stream = Stream(spark, url, Path(checkpoint), max_events="100")
    query = stream.start(lambda events, number: store(target, hang, events, number))
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
