"""Two Dagsters on one queue, which do not see each other's runs."""

from collections import Counter

import pytest

from demo.graphql import Dagster, Run
from tests.support.live import Live
from tests.support.live_graphql import last_skip_reason
from tests.support.live_points import BEFORE_WRITE
from tests.support.live_project import CONSUMERS, QUEUE


@pytest.mark.slow
def test_each_batch_is_acked_by_one_instance_and_the_other_says_who_works_on_it(
    live: Live,
) -> None:
    with live.another_instance() as other:
        live.hold(BEFORE_WRITE, *CONSUMERS)
        expected = live.publish("shared", 20)
        live.wait_until_held(*CONSUMERS)
        for consumer in CONSUMERS:
            wait_until_told(live, other, consumer)
        live.points.clear()
        live.wait_until_consumed()
        # Now they race.
        for number in range(3):
            expected_too = live.publish(f"raced {number}", 20)
            live.wait_until_consumed()
            assert live.counted(f"raced {number}") == expected_too
        live.wait(lambda: all(run.is_finished for run in runs(other)), "its runs' end")
        acks = Counter(ack for dagster in (live.dagster, other) for ack in acked(dagster))

    assert set(acks.values()) == {1}
    assert live.counted("shared") == expected
    assert live.leftovers() == []


def runs(dagster: Dagster) -> list[Run]:
    return dagster.runs({"pgque/queue": QUEUE})


def wait_until_told(live: Live, other: Dagster, consumer: str) -> None:
    """Waits until the instance that has not the run names it as the lease's owner."""
    holder = live.holder(consumer)
    assert holder is not None
    is_ours = any(holder.endswith(run.id) for run in live.runs())
    stranger = other if is_ours else live.dagster
    told = f'{consumer} is leased by "{holder}"'
    live.wait(lambda: told in last_skip_reason(stranger), told)


def acked(dagster: Dagster) -> list[str]:
    """What its runs logged of their acks."""
    return [
        entry.message
        for run in runs(dagster)
        for entry in dagster.log(run.id)
        if "Acked batch" in entry.message
    ]
