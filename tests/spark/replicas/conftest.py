"""Fixtures of the tests that replicate tables."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.replication import DeltaReplication, PostgresReplication, Replication


@pytest.fixture
def queue_url(database_url: str) -> str:
    """A database with a queue for changes, and a consumer of it."""
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("select pgque.create_queue('changes')")
        db.execute("select pgque.register_consumer('changes', 'lake')")
    return database_url


@pytest.fixture
def delta(queue_url: str, spark: SparkSession, tmp_path: Path) -> DeltaReplication:
    """Replicas in Delta tables."""
    return DeltaReplication(queue_url, spark, tmp_path / "lake")


@pytest.fixture
def postgres(queue_url: str, spark: SparkSession, server: Server) -> Iterator[PostgresReplication]:
    """Replicas in another database, which has no queue."""
    with empty_database(server) as url:
        yield PostgresReplication(queue_url, spark, url)


@pytest.fixture(params=["delta", "postgres"])
def replication(request: pytest.FixtureRequest) -> Replication:
    """Replicas of either kind."""
    found: Replication = request.getfixturevalue(request.param)
    return found
