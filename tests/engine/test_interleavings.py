"""Whatever the order of what everybody does, each consumer gets each committed event once."""

import secrets
from collections.abc import Callable

import pytest

from tests.support.interleaving import Interleaving
from tests.support.queues import Connection

Another = Callable[[], Connection]


def run(another: Another, seed: int, steps: int) -> None:
    print(f"seed {seed}, {steps} steps")  # shown when the test fails
    interleaving = Interleaving(another, seed)
    interleaving.run(steps)
    interleaving.finish()
    for consumer in interleaving.consumers:
        assert consumer.delivered == consumer.expected, consumer.name
    assert interleaving.consumers[0].delivered.total() > steps / 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_committed_event_arrives_once(another: Another, seed: int) -> None:
    run(another, seed, 500)


def test_each_committed_event_arrives_once_in_an_order_not_seen_before(another: Another) -> None:
    run(another, secrets.randbelow(2**32), 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_each_committed_event_arrives_once_in_long_runs(another: Another, seed: int) -> None:
    run(another, seed, 2000)
