"""One running `dagster dev` for all tests here; each leaves it running and the queue empty.

Those marked `everywhere` run on more of them, too: see there.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser as chromium
from tests.support.live import WARM, Live, running

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


@pytest.fixture(scope="session")
def running_warm_live() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=WARM) as live,
    ):
        yield live


@pytest.fixture(scope="session")
def running_connect_live() -> Iterator[Live]:
    with (
        tempfile.TemporaryDirectory(prefix="pgque-live-") as folder,
        running(Path(folder), settings=WARM, connect=True) as live,
    ):
        yield live


_FIXTURES = {
    "default": "running_live",
    "warm": "running_warm_live",
    "connect": "running_connect_live",
}


@pytest.fixture
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    live = request.getfixturevalue(_FIXTURES[getattr(request, "param", "default")])
    yield live
    live.points.clear()


@pytest.fixture
def browser() -> Iterator[chromium.Browser]:
    with chromium.browsing() as page:
        yield page
