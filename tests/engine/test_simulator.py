"""Whatever the order of what everybody does, each consumer gets each committed event once."""

import secrets

import pytest

from tests.simulator.run import program, simulate


def run(url: str, seed: int, steps: int) -> None:
    """Runs a seed; `make simulate` with the same numbers runs it again, and shortens it."""
    report = simulate(url, program(seed, steps))
    print(f"seed {seed}: {steps} steps, {report.events} events")
    assert report.failure is None, f"seed {seed}: {report.failure}"
    assert report.events >= steps / 20


def test_each_consumer_gets_each_committed_event_once(database_url: str) -> None:
    run(database_url, seed=1, steps=2000)


@pytest.mark.slow
def test_each_consumer_gets_each_committed_event_once_in_an_order_not_seen_before(
    database_url: str,
) -> None:
    run(database_url, secrets.randbelow(2**32), steps=2000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_each_consumer_gets_each_committed_event_once_in_long_runs(
    database_url: str, seed: int
) -> None:
    run(database_url, seed, steps=20_000)
