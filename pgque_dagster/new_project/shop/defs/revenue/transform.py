"""Computes the asset revenue."""

from pgque_dagster import SparkBatch
from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def revenue(batch: SparkBatch) -> DataFrame:
    """Sums the totals of each product in a batch of orders."""
    events = batch.payload("product string not null, total double not null")
    return events.groupBy("product").agg(f.sum("total").alias("total"))
