"""Connections for the engine's tests, closed when the test ends."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.queues import Connection, connect


@pytest.fixture
def another(database_url: str) -> Iterator[Callable[[], Connection]]:
    """Opens one more connection to the test's database."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(database_url))


@pytest.fixture
def db(another: Callable[[], Connection]) -> Connection:
    return another()


@pytest.fixture
def background(another: Callable[[], Connection]) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for another session. They end before the connections close."""
    with ThreadPoolExecutor() as pool:
        yield pool
