"""Reads slices through Spark's JDBC source, for executors without this package."""

from collections.abc import Sequence
from functools import reduce

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from ...client.errors import InvalidArgument, PgqueError
from ...client.models import Slice

_DRIVER = "org.postgresql.Driver"
# Without this, the driver fetches the whole result before it returns the first row.
_FETCH_ROWS = "10000"


class JdbcDriverMissing(PgqueError):
    """Spark has no JDBC driver for PostgreSQL on its class path."""


def read_slices(
    spark: SparkSession, url: str, slices: Sequence[Slice], columns: Sequence[str]
) -> DataFrame:
    """Returns the events of one or more slices, each in its own partition.

    Args:
        spark: a session with the driver's jar, for example by `spark.jars`.
        url: the database as a libpq URI or connection string with a host.
        slices: the slices to read.
        columns: which columns to return.

    Raises:
        JdbcDriverMissing: if the session has no such driver.
        InvalidArgument: if JDBC cannot connect to the URL.
    """
    options = jdbc_options(url)
    names = ", ".join(columns)
    reader = spark.read.format("jdbc").options(**options, driver=_DRIVER, fetchsize=_FETCH_ROWS)
    try:
        parts = [
            reader.option("dbtable", f"(select {names} from ({part.sql}) s) slice").load()
            for part in slices
        ]
    except Exception as error:
        if f"ClassNotFoundException: {_DRIVER}" not in str(error):
            raise
        raise JdbcDriverMissing(
            "this Spark has no JDBC driver for PostgreSQL",
            "Start it with spark.jars=/usr/share/java/postgresql.jar (Debian: apt install "
            "libpostgresql-jdbc-java), or read without reader='jdbc'.",
        ) from None
    return reduce(DataFrame.unionAll, parts)


def jdbc_options(url: str) -> dict[str, str]:
    """Returns a libpq URL as options of Spark's JDBC source, with the password as its own option.

    Raises:
        InvalidArgument: if the URL names a Unix socket or several hosts, which JDBC cannot express.
    """
    given = conninfo_to_dict(url)
    host = str(given.get("hostaddr") or given.get("host") or "localhost")
    if host.startswith(("/", "@")) or "," in host:
        raise InvalidArgument(
            f"JDBC cannot connect to host {host!r}",
            "Name one host to connect to over TCP, or read without reader='jdbc'.",
        )
    options = {
        "url": f"jdbc:postgresql://{host}:{given.get('port') or 5432}/{given.get('dbname') or ''}"
    }
    for ours, theirs in (("user", "user"), ("password", "password"), ("sslmode", "sslmode")):
        if given.get(ours):
            options[theirs] = str(given[ours])
    return options
