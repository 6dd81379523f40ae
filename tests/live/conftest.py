"""One running `dagster dev` for most tests here; each leaves it running and the queue empty."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser as chromium
from tests.support.live import Live, running

SECONDS = 1800  # the first test also waits for Dagster to start


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives these tests more time, and leaves out what needs a browser where there is none."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS))
    if chromium.PROGRAM is not None:
        return
    seen = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    if seen:
        config.hook.pytest_deselected(items=seen)
        items[:] = [item for item in items if item not in seen]


@pytest.fixture(scope="session")
def running_live() -> Iterator[Live]:
    # Not tmp_path_factory: pytest closes its folders to the user who runs the server for root.
    with tempfile.TemporaryDirectory(prefix="pgque-live-") as folder, running(Path(folder)) as live:
        yield live


@pytest.fixture
def live(running_live: Live) -> Iterator[Live]:
    yield running_live
    running_live.points.clear()


@pytest.fixture
def browser() -> Iterator[chromium.Browser]:
    with chromium.browsing() as page:
        yield page
