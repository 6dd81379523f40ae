"""A program that unites the files of an Iceberg table, and signals itself before it commits.

python -m tests.support.iceberg_compacting_driver <url> <warehouse> <file> <signal>
"""

import os
import sys
from pathlib import Path
from typing import Any

from pgque_dagster.spark import IcebergSink
from pgque_dagster.spark.sinks.iceberg import maintenance
from tests.support.lakes import TABLE


def main() -> None:
    url, warehouse, reached, number = sys.argv[1:]
    entries_of = maintenance.entries_of

    def entries(*arguments: Any) -> Any:
        if not Path(reached).exists():
            Path(reached).touch()
            os.kill(os.getpid(), int(number))
        return entries_of(*arguments)

    maintenance.entries_of = entries
    IcebergSink(TABLE, warehouse=warehouse).maintain(url)


if __name__ == "__main__":
    main()
