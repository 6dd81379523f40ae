"""Tables of PostgreSQL with columns of any type, and what Spark writes into them."""

import itertools
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from pyspark.sql import SparkSession

from pgque_dagster.spark import PostgresSink
from tests.support.queues.sql import connect, rows

TYPES = """
create type mood as enum ('calm', 'Über');
create domain cents as numeric;
create domain small_cents as cents;
create domain short as varchar(3) check (value <> 'no');
create domain shorter as short;
"""
# A condition whose computation is an error.
UNWORKABLE = "where raise_error('Spark worked') is null"
_numbers = itertools.count()


def execute(url: str, *statements: str) -> None:
    with connect(url) as db:
        for statement in statements:
            db.execute(statement.encode())


def read(url: str, query: str) -> list[tuple[Any, ...]]:
    with connect(url) as db:
        db.execute("set timezone = 'UTC'; set intervalstyle = 'postgres'")
        return rows(db, query)


def stages(url: str) -> list[tuple[Any, ...]]:
    return read(url, "select relname from pg_class where relname ~ '^pgque_stage'")


def write(url: str, table: str, frame: Any, **options: Any) -> None:
    PostgresSink(table, url=url, **options).foreach_batch(query="q")(frame, next(_numbers))


def store(
    url: str, spark: SparkSession, columns: Sequence[tuple[str, tuple[Any, ...], str]]
) -> None:
    """Writes columns, each a Spark type, values, and a type of PostgreSQL, to the table stored."""
    kinds = ", ".join(f'"c{place}" {kind}' for place, (_, _, kind) in enumerate(columns))
    execute(url, "drop table if exists stored", f"create table stored (number int, {kinds})")
    given = list(zip_longest(*(values for _, values, _ in columns)))
    ddl = ", ".join(f"c{place} {spark_type}" for place, (spark_type, _, _) in enumerate(columns))
    frame = spark.createDataFrame(
        [(number, *row) for number, row in enumerate(given)], f"number int, {ddl}"
    )
    write(url, "stored", frame.coalesce(1))


def stored(url: str, column: str = "{}", count: int = 1) -> list[list[Any]]:
    """The columns of that table."""
    wanted = ", ".join(column.format(f"c{place}") for place in range(count))
    found = read(url, f"select {wanted} from stored order by number")
    return [list(values) for values in zip(*found, strict=True)]
