"""What a person does in the UI while runs work."""

from tests.support.live import Live, everywhere
from tests.support.live_graphql import cancel, reload
from tests.support.live_points import AFTER_WRITE, BEFORE_WRITE
from tests.support.live_project import CONSUMERS, LINES

pytestmark = everywhere


def test_a_cancelled_run_gives_its_batch_back_to_the_next_one(live: Live) -> None:
    live.hold(BEFORE_WRITE, LINES)
    expected = live.publish("cancelled", 20)
    live.wait_until_held(LINES)
    held = next(run for run in live.runs() if run.consumer == LINES)

    cancel(live.dagster, held.id)
    live.wait(lambda: live.run(held.id).is_finished, "the run's end")
    holder = live.holder(LINES)
    live.wait_until_consumed()

    again = next(run for run in live.runs() if run.batch == held.batch)
    assert live.run(held.id).status == "CANCELED"
    assert holder is None or held.id not in holder
    assert (again.attempt, again.status) == (2, "SUCCESS")
    assert live.counted("cancelled") == expected


def test_runs_go_on_while_the_code_location_is_reloaded(live: Live) -> None:
    earlier = live.runs()
    live.hold(AFTER_WRITE, *CONSUMERS)
    expected = live.publish("reloaded", 20)
    live.wait_until_held(*CONSUMERS)

    reload(live.dagster)
    live.points.clear()
    live.wait_until_consumed()

    assert [run.status for run in live.runs_since(earlier)] == ["SUCCESS", "SUCCESS"]
    assert live.counted("reloaded") == expected
