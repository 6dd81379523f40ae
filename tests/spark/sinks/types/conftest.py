"""Fixtures of the tests of types: Spark and the database work in two time zones, neither UTC."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Server
from tests.support.queues.sql import connect, rows
from tests.support.servers.databases import empty_database
from tests.support.spark.typed_tables import TYPES, execute


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    """A database in a time zone of its own."""
    with empty_database(server) as made:
        with connect(made) as db:
            ((name,),) = rows(db, "select current_database()")
            db.execute(f"alter database {name} set timezone = 'Asia/Tokyo'".encode())
            db.execute(f"alter database {name} set intervalstyle = 'sql_standard'".encode())
        yield made


@pytest.fixture
def url(database: str) -> str:
    """The same database for each test, with nothing in it but types."""
    execute(database, "drop schema public cascade; create schema public", TYPES)
    return database


@pytest.fixture(autouse=True)
def spark_in_new_york(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)
