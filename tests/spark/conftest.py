"""Fixtures of the tests that read batches with Spark."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import batch as batch_module
from tests.conftest import NewDatabase, install
from tests.support.queues.events import make_queue
from tests.support.spark.attempts import BatchOf, next_batch


def revenue_of_orders(url: str) -> None:
    with Client(url) as client:
        make_queue(client)


@pytest.fixture
def client(new_database: NewDatabase) -> Iterator[Client]:
    """A client of a fresh database with the queue orders and its consumer revenue."""
    with new_database(install, revenue_of_orders) as url, Client(url) as connected:
        yield connected


@pytest.fixture
def batch_of(client: Client, spark: SparkSession) -> BatchOf:
    """Publishes events with these payloads; returns them as a claimed batch."""
    return lambda *payloads: next_batch(client, spark, payloads)


@pytest.fixture(params=["driver", "executors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads on the driver, or through the data source."""
    if request.param == "executors":
        monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)
    return str(request.param)
