"""What runs and sensors need goes away and comes back: every event counts once in both sinks."""

import pytest

from tests.support.live import Live, everywhere
from tests.support.live_graphql import failed_evaluation, give_up, last_skip_reason
from tests.support.live_points import AFTER_WRITE, BEFORE_WRITE
from tests.support.live_project import CONSUMERS, LINES

pytestmark = [pytest.mark.slow, everywhere]


def test_runs_outlive_a_killed_daemon_and_the_next_one_goes_on(live: Live) -> None:
    earlier = live.runs()
    live.hold(BEFORE_WRITE, *CONSUMERS)
    expected = live.publish("before the daemon died", 20)
    live.wait_until_held(*CONSUMERS)

    live.kill_daemon()
    live.wait(lambda: not live.dagster.is_ready(), "the end of the webserver")
    expected_too = live.publish("without a daemon", 20)
    live.points.clear()
    live.wait(lambda: not live.has_code_server(), "the end of the runs")
    live.stop()
    live.start()
    live.wait_until_consumed()

    assert {run.status for run in live.runs_since(earlier)} == {"SUCCESS"}
    assert live.counted("before the daemon died") == expected
    assert live.counted("without a daemon") == expected_too


def test_a_run_that_died_with_all_of_dagster_is_followed_by_the_next_attempt(live: Live) -> None:
    live.hold(AFTER_WRITE, LINES)
    expected = live.publish("all killed", 20)
    live.wait_until_held(LINES)
    live.wait(lambda: sum(not run.is_finished for run in live.runs()) == 1, "the other's end")
    (held,) = (run for run in live.runs() if not run.is_finished)

    live.kill()
    live.stop()
    live.start()
    live.wait(live.is_consumed, "the batch acked by another run")

    if live.is_warm:
        live.wait(lambda: live.run(held.id).status == "FAILURE", "run monitoring")
    else:
        # Dagster's default launcher does not notice; until it is canceled, it takes a place.
        assert live.run(held.id).status == "STARTED"
        give_up(live.dagster, held.id)
    live.wait_until_consumed()
    again = next(run for run in live.runs() if run.batch == held.batch)
    assert (again.attempt, again.status) == (2, "SUCCESS")
    assert live.counted("all killed") == expected
    assert live.leftovers() == []


def test_runs_and_sensor_go_on_when_postgres_comes_back_after_a_stop(live: Live) -> None:
    live.hold(AFTER_WRITE, *CONSUMERS)
    expected = live.publish("stopped", 20)
    live.wait_until_held(*CONSUMERS)

    live.stop_postgres()
    live.wait(lambda: "Check that the server runs" in last_skip_reason(live.dagster), "a reason")
    live.start_postgres()
    live.points.clear()
    live.wait_until_consumed()

    assert failed_evaluation(live.dagster) is None
    assert live.counted("stopped") == expected
    assert live.leftovers() == []


def test_runs_that_end_without_postgres_are_followed_by_the_next_attempt(live: Live) -> None:
    live.hold(AFTER_WRITE, *CONSUMERS)
    expected = live.publish("crashed", 20)
    live.wait_until_held(*CONSUMERS)

    live.kill_postgres()
    live.points.clear()
    live.wait(lambda: all(run.is_finished for run in live.runs()), "the runs' end")
    live.start_postgres()
    live.wait_until_consumed()

    assert failed_evaluation(live.dagster) is None
    assert live.counted("crashed") == expected
    assert live.leftovers() == []
