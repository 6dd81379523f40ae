"""The same slices by Spark's JDBC source, where its driver is installed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster import installer
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.batch import read_plan
from pgque_dagster.embedded import EmbeddedPostgres
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.reading import jdbc
from tests.conftest import JDBC_JAR
from tests.support.events import claim, make_queue, publish


@pytest.fixture
def tcp_url() -> Iterator[str]:
    """A database that Java can reach."""
    with (
        tempfile.TemporaryDirectory(prefix="pgque-test-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres", tcp=True) as server,
    ):
        installer.install(server.tcp_url)
        yield server.tcp_url


if JDBC_JAR.is_file():

    def test_both_readers_give_the_same_events(tcp_url: str, spark: SparkSession, way: str) -> None:
        with Client(tcp_url) as client:
            make_queue(client)
            publish(client, [{"number": number} for number in range(50)])
            batch = SparkBatch(spark, claim(client), tcp_url, slices=2)

            by_adbc, by_jdbc = batch.events(), batch.events(reader="jdbc")

            assert by_jdbc.dtypes == by_adbc.dtypes
            assert sorted(by_jdbc.collect()) == sorted(by_adbc.collect())
            assert by_jdbc.count() == 50


def test_a_session_without_the_driver_is_told_how_to_get_it(
    client: Client, database_url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, ["a"])
    monkeypatch.setattr(jdbc, "_DRIVER", "org.postgresql.NoSuchDriver")
    slices = read_plan(claim(client), 1).slices

    with pytest.raises(jdbc.JdbcDriverMissing, match=r"no JDBC driver .* spark\.jars="):
        jdbc.read_slices(spark, "postgresql://localhost/x", slices, ["ev_id"])


@pytest.mark.parametrize("host", ["%2Fvar%2Frun", "one,two"])
def test_a_host_that_jdbc_cannot_reach_is_named(host: str) -> None:
    with pytest.raises(InvalidArgument, match="JDBC cannot connect to host"):
        jdbc.jdbc_options(f"postgresql://{host}/x")


def test_the_password_is_no_part_of_the_jdbc_address() -> None:
    assert jdbc.jdbc_options("postgresql://me:s3cret@db.example:5433/shop?sslmode=require") == {
        "url": "jdbc:postgresql://db.example:5433/shop",
        "user": "me",
        "password": "s3cret",
        "sslmode": "require",
    }


def test_a_reader_that_there_is_not_is_named(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    publish(client, ["a"])
    batch = SparkBatch(spark, claim(client), database_url)

    with pytest.raises(InvalidArgument, match="no reader 'odbc'"):
        batch.events(reader="odbc")  # type: ignore[arg-type]
