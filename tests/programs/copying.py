"""A program that applies batches to replicas until it is killed, and copies tables in parts.

python -m tests.programs.copying <delta, iceberg or postgres> <url> <place> <table>
"""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from tests.client.consumer.support import expire_leases
from tests.support.replicas.replication import (
    DeltaReplication,
    IcebergReplication,
    PostgresReplication,
    Replication,
)

MB = 2**20


def main() -> None:
    kind, url, place, table = sys.argv[1:5]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    parts.PART_BYTES, parts.WHOLE_BYTES, parts.SHARE_SECONDS = MB, MB, 10.0
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    replication: Replication = PostgresReplication(url, spark, place)
    if kind != "postgres":
        of = DeltaReplication if kind == "delta" else IcebergReplication
        replication = of(url, spark, Path(place))
    replication.tables = [table]
    with replication.connect() as db:
        expire_leases(db)
    while True:
        replication.tick()
        with Client(url) as client:
            batch = replication.claim(client)
            if batch is None:
                time.sleep(0.1)
                continue
            with batch.claim.keep_alive():
                replication.replicate(batch, replication.tables)
                print(replication.copied, flush=True)
            batch.claim.ack()


if __name__ == "__main__":
    main()
