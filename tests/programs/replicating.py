"""A program that applies the next batch to replicas, and kills itself at a point.

python -m tests.programs.replicating <delta or postgres> <url> <place> <point> <tables> <file>
"""

import os
import sys
from pathlib import Path
from signal import SIGKILL

import pytest
from pyspark.sql import SparkSession

from tests.support.replicas.faults import Faults
from tests.support.replicas.replication import DeltaReplication, PostgresReplication, Replication


def main() -> None:
    kind, url, place, point, tables = sys.argv[1:6]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    replication: Replication
    if kind == "delta":
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        replication = DeltaReplication(url, builder.getOrCreate(), Path(place))
    else:
        replication = PostgresReplication(url, None, place)
    replication.tables = [*tables.split(",")]
    faults = Faults(replication, pytest.MonkeyPatch())
    faults.set(point, 0, lambda: os.killpg(os.getpid(), SIGKILL))
    replication.run()


if __name__ == "__main__":
    main()
