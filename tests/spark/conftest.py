"""Fixtures of the tests that read batches with Spark."""

from collections.abc import Iterator

import pytest

from pgque_dagster.client import Client
from pgque_dagster.spark import batch as batch_module
from tests.support.events import make_queue


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A client of a database with the queue orders and its consumer revenue."""
    with Client(database_url) as connected:
        make_queue(connected)
        yield connected


@pytest.fixture(params=["driver", "executors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads on the driver, or through the data source."""
    if request.param == "executors":
        monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)
    return str(request.param)
