"""Materializes an asset whose Spark is a Connect server, named by dagster-pyspark's resource."""

import json
import sys
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pgque_dagster import PgqueResource, SparkBatch, pgque_asset


def sum_up(master: str, url: str) -> dict[str, Any]:
    sums: list[float] = []
    sessions: list[str] = []

    @pgque_asset(queue="orders", consumer="revenue")
    def revenue(batch: SparkBatch) -> None:
        sessions.append(type(batch.spark).__module__)
        ((total,),) = batch.payload("total double not null").groupBy().sum("total").collect()
        sums.append(total)

    result = dg.materialize(
        [revenue],
        resources={
            "pgque": PgqueResource(url=url),
            "pyspark": LazyPySparkResource(spark_config={"spark.remote": master}),
        },
    )
    return {
        "success": result.success,
        "sums": sums,
        "sessions": sessions,
    }


if __name__ == "__main__":
    master, _, story, url, _ = sys.argv[1:]
    print(json.dumps(globals()[story](master, url)), flush=True)
