"""The people of a story, signed in to the test's database."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import Server
from tests.support.databases import empty_database
from tests.support.stories import Operator, Producer, Worker, sign_in

Hire = Callable[[str, str], Worker]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes the story's connections when it ends."""
    with ExitStack() as connections:
        yield connections


@pytest.fixture
def operator(database_url: str, stack: ExitStack) -> Operator:
    return Operator(stack.enter_context(sign_in(database_url, "story_operator")))


@pytest.fixture
def producer(database_url: str, stack: ExitStack) -> Producer:
    return Producer(stack.enter_context(sign_in(database_url, "story_producer")))


@pytest.fixture
def hire(database_url: str, stack: ExitStack) -> Hire:
    """Makes a worker of a queue and a consumer, not subscribed yet."""

    def hire(queue: str, consumer: str) -> Worker:
        db = stack.enter_context(sign_in(database_url, "story_worker"))
        return Worker(db, queue, consumer)

    return hire


@pytest.fixture
def new_database_url(server: Server) -> Iterator[str]:
    """A database without the queue."""
    with empty_database(server) as url:
        yield url
