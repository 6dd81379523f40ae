"""One running `dagster dev` for most tests here; each leaves it running and the queue empty."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live.instance import Live, running

SECONDS = 1800  # the first test also waits for Dagster to start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives these tests more time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def running_live() -> Iterator[Live]:
    # Not tmp_path_factory: pytest closes its folders to the user who runs the server for root.
    with tempfile.TemporaryDirectory(prefix="pgque-live-") as folder, running(Path(folder)) as live:
        yield live


@pytest.fixture
def live(running_live: Live) -> Iterator[Live]:
    yield running_live
    running_live.points.clear()
