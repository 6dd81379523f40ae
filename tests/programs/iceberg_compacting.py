"""A program that unites the files of an Iceberg table, and kills itself before it commits.

python -m tests.programs.iceberg_compacting <url> <warehouse> <file>
"""

import os
import sys
from signal import SIGKILL
from typing import Any

from pyspark.sql import SparkSession

from pgque_dagster.spark import IcebergSink
from pgque_dagster.spark.sinks.iceberg import maintenance
from tests.support.spark.lakes import TABLE


def die(*arguments: Any) -> None:
    os.kill(os.getpid(), SIGKILL)


def main() -> None:
    url, warehouse = sys.argv[1:3]
    setattr(maintenance, "entries_of", die)  # noqa: B010
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    IcebergSink(TABLE, warehouse=warehouse).maintain(spark, url)


if __name__ == "__main__":
    main()
