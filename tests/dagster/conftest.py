"""Fixtures of the tests that evaluate definitions against a real queue."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psycopg
import pytest

from pgque_dagster.client import Client
from tests.conftest import NewDatabase
from tests.support.dagster.dg_project import DgProject
from tests.support.queues.events import make_queue
from tests.support.queues.sql import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.dagster.sharded_project import ShardedProject


DEFAULT, BILLING = "pgque", "billing"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DgProject:
    """A project of `dg`, in which the test is, and whose modules it may import."""
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    return project


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A client for a database with the queue orders and its consumer revenue."""
    with Client(database_url) as client:
        make_queue(client)
        yield client


@pytest.fixture
def reused_database_url(shared_database_url: str) -> Iterator[str]:
    """One database for the tests of a file, without the queue orders and the tables of sinks.

    A fresh one costs as much as a small run. A file that has many of them overrides `database_url`.
    """
    yield shared_database_url
    with Client(shared_database_url) as client, connect(shared_database_url) as db:
        client.drop_queue("orders", force=True)
        db.execute("drop schema if exists public, iceberg_catalog cascade")
        db.execute("create schema public")


@pytest.fixture(scope="session")
def one_instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def instance(one_instance: dg.DagsterInstance) -> Iterator[dg.DagsterInstance]:
    """An instance without runs and events."""
    yield one_instance
    one_instance.wipe()


@pytest.fixture
def sql(database_url: str) -> Iterator[Callable[[str], None]]:
    """Runs SQL that changes times in the queue's tables, so that tests need not wait."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield lambda statement: connection.execute(statement.encode()) and None


@pytest.fixture
def two_clients(database_url: str, new_database: NewDatabase) -> Iterator[dict[str, Client]]:
    """Clients of two databases of one server, by name; each has the queue orders and revenue."""
    with (
        new_database() as billing_url,
        Client(database_url) as default,
        Client(billing_url) as billing,
    ):
        for client in (default, billing):
            make_queue(client)
        yield {DEFAULT: default, BILLING: billing}


@pytest.fixture
def shard_urls(new_database: NewDatabase) -> Iterator[dict[str, str]]:
    """Three databases of one server, each with the queue orders and its consumer revenue."""
    with ExitStack() as stack:
        databases = {shard: stack.enter_context(new_database()) for shard in ("eu", "us", "asia")}
        for url in databases.values():
            with Client(url) as client:
                make_queue(client)
        yield databases


@pytest.fixture
def sharded(
    request: pytest.FixtureRequest,
    shard_urls: dict[str, str],
    database_url: str,
    tmp_path: Path,
    spark: "SparkSession",
) -> "ShardedProject":
    """An asset over two of the databases, stored in Delta unless the parameter is another kind.

    What it stores that is no file, is in a further database.
    """
    from tests.support.dagster.sharded_project import TABLE, ShardedProject

    kind = getattr(request, "param", "delta")
    two = {shard: shard_urls[shard] for shard in ("eu", "us")}
    if kind == "postgres":
        with connect(database_url) as db:
            db.execute(TABLE)
    return ShardedProject(two, kind, tmp_path / "lake", spark, database_url)
