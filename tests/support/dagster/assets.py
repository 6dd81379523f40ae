"""The asset that most tests consume with."""

from pgque_dagster import SparkBatch, pgque_asset


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count
