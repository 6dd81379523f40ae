"""Fixtures of the tests of sinks."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from tests.conftest import NewDatabase, Server
from tests.support.queues.events import make_queue
from tests.support.servers.databases import empty_database
from tests.support.servers.s3 import S3, s3_server
from tests.support.spark.balances import TABLE, Work, run
from tests.support.spark.directories import Place
from tests.support.spark.lakes import IcebergLake
from tests.support.spark.stored_tables import TABLES


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server that checks rights, for the whole session, as the one who has all rights."""
    with s3_server() as server:
        administrator = server.login("*")
        server.check_access()
        yield administrator


@pytest.fixture
def location(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> str:
    """The place of a table of the kind that is the test's parameter."""
    if not TABLES[kind].is_on_s3:
        return str(tmp_path / "table")
    found: S3 = request.getfixturevalue("s3")
    for name, option in found.options.items():
        monkeypatch.setenv(name.upper(), option)
    return found.url(uuid.uuid4().hex)


@pytest.fixture
def lake(client: Client, spark: SparkSession, tmp_path: Path) -> IcebergLake:
    return IcebergLake(client, spark, tmp_path)


@pytest.fixture
def directory(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path / "with space")


@pytest.fixture
def other_database(new_database: NewDatabase) -> Iterator[Client]:
    """A copy of the same template, as if the queue was copied with its database."""
    with new_database() as url, Client(url) as client:
        make_queue(client)
        yield client


@pytest.fixture
def work(client: Client, spark: SparkSession) -> Work:
    return Work(client, spark)


@pytest.fixture
def elsewhere(server: Server) -> Iterator[str]:
    """Another database with the table of this work."""
    with empty_database(server) as url:
        run(url, TABLE)
        yield url
