"""What the bank's assets compute: pure functions from DataFrame to DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

# A row of pgbench_history, as its trigger publishes it.
HISTORY = "tid int not null, bid int not null, aid int not null, delta bigint not null"


def sum_deltas(history: DataFrame, key: str) -> DataFrame:
    """Returns what a batch of postings adds to each balance: (key, delta, postings)."""
    return history.groupBy(key).agg(f.sum("delta").alias("delta"), f.count("*").alias("postings"))
