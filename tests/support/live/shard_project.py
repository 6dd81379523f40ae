"""A code location for a live Dagster: windows of a queue over two databases of one server."""

import os

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from psycopg.conninfo import make_conninfo

from pgque_dagster import DeltaBatchIOManager, PgqueResource, pgque_asset
from tests.support.live.project import HOURLY, HOURS, output, spark_config


def shard_urls(url: str) -> dict[str, str]:
    """Returns the URLs of the shards: the database of the server's URL, and one beside it."""
    return {"eu": url, "us": make_conninfo(url, dbname="us")}


@dg.definitions
def defs() -> dg.Definitions:
    urls = shard_urls(os.environ["PGQUE_URL"])
    hours = dg.HourlyPartitionsDefinition("2026-01-01-00:00", "2026-01-02-00:00")
    consuming = pgque_asset(queue=HOURS, databases=list(urls), partitions_def=hours, name=HOURLY)
    return dg.Definitions(
        assets=[consuming(lambda batch: batch.payload("event string not null"))],
        resources={
            **{shard: PgqueResource(url=url) for shard, url in urls.items()},
            "pyspark": LazyPySparkResource(spark_config=spark_config()),
            "io_manager": DeltaBatchIOManager(base_dir=str(output())),
        },
        executor=dg.in_process_executor,
    )
