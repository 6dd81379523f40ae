"""Fixtures of the tests that replicate tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Server
from tests.support.replicas.parts import TABLE, copy_in_parts
from tests.support.replicas.replication import (
    DeltaReplication,
    IcebergReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
    execute,
)
from tests.support.replicas.sessions import close_kept
from tests.support.servers.databases import empty_database


@pytest.fixture
def queue_url(database_url: str) -> Iterator[str]:
    """A database with a queue for changes, and a consumer of it."""
    execute(database_url, "select pgque.create_queue('changes')")
    execute(database_url, "select pgque.register_consumer('changes', 'lake')")
    yield database_url
    close_kept()


@pytest.fixture
def delta(queue_url: str, spark: SparkSession, tmp_path: Path) -> DeltaReplication:
    """Replicas in Delta tables."""
    return DeltaReplication(queue_url, spark, tmp_path / "lake")


@pytest.fixture
def iceberg(queue_url: str, spark: SparkSession, tmp_path: Path) -> IcebergReplication:
    """Replicas in Iceberg tables."""
    return IcebergReplication(queue_url, spark, tmp_path / "lake")


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> LakeReplication:
    """Replicas in either format of the lake."""
    found: LakeReplication = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def postgres(queue_url: str, server: Server) -> Iterator[PostgresReplication]:
    """Replicas in another database, which has no queue."""
    with empty_database(server) as url:
        yield PostgresReplication(queue_url, None, url)
        close_kept()


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def replication(request: pytest.FixtureRequest) -> Replication:
    """Replicas of each kind."""
    found: Replication = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def table(lake: LakeReplication, monkeypatch: pytest.MonkeyPatch) -> LakeReplication:
    """A table that is captured, and copied in tiny parts."""
    copy_in_parts(monkeypatch)
    lake.sql(f"{TABLE} create table other (id int primary key); insert into other values (1)")
    lake.capture("public.t")
    return lake
