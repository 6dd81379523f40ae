"""Whatever the order of what everybody does, each consumer gets each committed event once."""

import secrets
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.support.interleaving import Interleaving, Stage
from tests.support.queues import Connection

Another = Callable[[], Connection]
STEPS_AN_EXAMPLE = 100


def run(another: Another, seed: int, steps: int) -> None:
    """Runs at least so many steps; a failure prints its steps as a program.

    It is not shrunk: time passes for the queue, so the same steps may not fail the same way.
    """
    stage = Stage(another)

    @hypothesis.seed(seed)
    def example() -> Interleaving:
        return Interleaving(stage)

    settings = hypothesis.settings(
        max_examples=steps // STEPS_AN_EXAMPLE * 3 // 2,
        stateful_step_count=STEPS_AN_EXAMPLE,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        run_state_machine_as_test(example, settings=settings)
    finally:
        print(f"seed {seed}: {stage.steps} steps, {stage.events} committed events")
    assert stage.steps >= steps
    assert stage.events >= steps / 50


def test_each_committed_event_arrives_once(another: Another) -> None:
    run(another, seed=1, steps=600)


def test_each_committed_event_arrives_once_in_an_order_not_seen_before(another: Another) -> None:
    run(another, seed=secrets.randbelow(2**32), steps=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_each_committed_event_arrives_once_in_long_runs(another: Another, seed: int) -> None:
    run(another, seed, steps=10_000)
