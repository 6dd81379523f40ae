"""Fixtures: connections to the test's database, closed when the test ends."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.queues import Another, Blocked, Connection, connect


@pytest.fixture
def another(database_url: str) -> Iterator[Another]:
    """Opens one more connection to the test's database."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(database_url))


@pytest.fixture
def db(another: Another) -> Connection:
    return another()


@pytest.fixture
def background(another: Another) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait for another session. They end before the connections close."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def blocked(another: Another, background: ThreadPoolExecutor) -> Blocked:
    """Calls a function with a connection of its own; returns when that waits for a lock."""

    def call(function: Callable[..., Any], *arguments: object) -> Future[Any]:
        connection = another()
        answer = background.submit(function, connection, *arguments)
        another().wait_until_blocked(connection)
        return answer

    return call
