"""Reads slices through Spark's JDBC source, to compare."""

from collections.abc import Sequence
from functools import reduce

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster.client.models import Slice


def read_slices(
    spark: SparkSession, url: str, slices: Sequence[Slice], columns: Sequence[str]
) -> DataFrame:
    """Returns the events of one or more slices, each in its own partition."""
    given = conninfo_to_dict(url)
    reader = spark.read.format("jdbc").options(
        url=f"jdbc:postgresql://{given['host']}:{given.get('port') or 5432}/{given['dbname']}",
        user=str(given["user"]),
        password=str(given.get("password") or ""),
        driver="org.postgresql.Driver",
        # Without this, the driver fetches the whole result before it returns the first row.
        fetchsize="10000",
    )
    names = ", ".join(columns)
    parts = [
        reader.option("dbtable", f"(select {names} from ({part.sql}) s) slice").load()
        for part in slices
    ]
    return reduce(DataFrame.unionAll, parts)
