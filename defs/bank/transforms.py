"""The functions that compute the bank's assets, from DataFrame to DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def branch_balances(history: DataFrame) -> DataFrame:
    """Returns what a batch adds to the balance of each branch."""
    return sum_deltas(history, "bid")


def teller_balances(history: DataFrame) -> DataFrame:
    """Returns what a batch adds to the balance of each teller."""
    return sum_deltas(history, "tid")


def account_balances(history: DataFrame) -> DataFrame:
    """Returns what a batch adds to the balance of each account."""
    return sum_deltas(history, "aid")


def sum_deltas(history: DataFrame, key: str) -> DataFrame:
    """Returns what a batch of postings adds to each balance: (key, delta, postings)."""
    return history.groupBy(key).agg(f.sum("delta").alias("delta"), f.count("*").alias("postings"))
