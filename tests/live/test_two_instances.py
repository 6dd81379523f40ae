"""Two Dagsters on one queue: a consumer belongs to the first, until somebody moves it."""

import re

import pytest

from demo.graphql import Dagster, Run
from pgque_dagster.client import Client, calls
from tests.support.live import Live
from tests.support.live_graphql import last_skip_reason
from tests.support.live_project import CONSUMERS, QUEUE


@pytest.mark.slow
def test_a_second_instance_consumes_nothing_before_the_consumers_are_moved_to_it(
    live: Live,
) -> None:
    expected_before = live.publish("before", 20)
    live.wait_until_consumed()
    with live.another_instance() as other:
        names = [refused_name(live, other, consumer) for consumer in CONSUMERS]
        expected_here = live.publish("here", 20)
        live.wait_until_consumed()
        consumed_there_too_early = runs(other)
        with Client(live.url) as client:
            for consumer, name in zip(CONSUMERS, names, strict=True):
                client.run(calls.consumers.move_to_deployment(QUEUE, consumer, name))
        for consumer in CONSUMERS:
            refused_name(live, live.dagster, consumer)
        earlier = live.runs()
        expected_there = live.publish("there", 20)
        live.wait(live.is_consumed, "all batches acked")
        live.wait(lambda: all(run.is_finished for run in runs(other)), "its runs' end")
        consumed_there = runs(other)
        consumed_here_too_late = live.runs_since(earlier)

    assert (consumed_there_too_early, consumed_here_too_late) == ([], [])
    assert len(consumed_there) >= len(CONSUMERS)
    assert live.counted("before") == expected_before
    assert live.counted("here") == expected_here
    assert live.counted("there") == expected_there
    assert live.leftovers() == []


def runs(dagster: Dagster) -> list[Run]:
    return dagster.runs({"pgque/queue": QUEUE})


def refused_name(live: Live, dagster: Dagster, consumer: str) -> str:
    """Waits until the sensor of an instance is refused a consumer; returns the instance's name."""
    told = re.compile(rf'{consumer}: consumer "{consumer}" .* this is deployment "([^"]+)"')
    live.wait(lambda: told.search(last_skip_reason(dagster)) is not None, told.pattern)
    found = told.search(last_skip_reason(dagster))
    assert found is not None
    return found[1]
