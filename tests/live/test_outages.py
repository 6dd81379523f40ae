"""What runs and sensors need goes away and comes back: every event counts once in both sinks."""

import pytest

from tests.support.live.graphql import failed_evaluation, give_up, last_skip_reason
from tests.support.live.instance import Live
from tests.support.live.points import AFTER_WRITE, BEFORE_WRITE
from tests.support.live.project import CONSUMERS

pytestmark = pytest.mark.slow


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


def test_two_daemons_of_one_instance_count_each_event_once(live: Live) -> None:
    with live.second_daemon():
        for round_ in range(4):
            expected = live.publish(f"two daemons, {round_}", 20)
            live.wait_until_consumed()
            assert live.counted(f"two daemons, {round_}") == expected


def test_runs_that_died_with_all_of_dagster_are_followed_by_the_next_attempt(live: Live) -> None:
    earlier = live.runs()
    live.hold(AFTER_WRITE, *CONSUMERS)
    expected = live.publish("all killed", 20)
    live.wait_until_held(*CONSUMERS)
    held = live.runs_since(earlier)

    live.kill()
    live.stop()
    live.start()
    # Run monitoring notices the end of a warm process. Dagster's own launcher does not notice; its
    # run takes a place until it is canceled.
    (warm,) = [run for run in held if run.tags.get("pgque/warm_process", "none") != "none"]
    (cold,) = [run for run in held if run.id != warm.id]
    live.wait(lambda: live.run(warm.id).status == "FAILURE", "run monitoring")
    live.wait(live.is_consumed, "the batches acked by other runs")
    assert live.run(cold.id).status == "STARTED"
    give_up(live.dagster, cold.id)
    live.wait_until_consumed()

    assert sorted((run.attempt, run.status) for run in live.runs_since(earlier)) == [
        (1, "CANCELED"),
        (1, "FAILURE"),
        *[(2, "SUCCESS")] * 2,
    ]
    assert live.counted("all killed") == expected
    assert live.leftovers() == []


@pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "crash"])
def test_runs_and_sensor_go_on_when_postgres_comes_back(live: Live, is_crash: bool) -> None:
    """After a crash, unlogged tables are empty, and the runs have ended without Postgres."""
    name = f"without Postgres, crash: {is_crash}"
    live.hold(AFTER_WRITE, *CONSUMERS)
    expected = live.publish(name, 20)
    live.wait_until_held(*CONSUMERS)

    if is_crash:
        live.kill_postgres()
        live.points.clear()
        live.wait(lambda: all(run.is_finished for run in live.runs()), "the runs' end")
    else:
        live.stop_postgres()
        live.wait(lambda: "Check that the server runs" in last_skip_reason(live.dagster), "that")
    live.start_postgres()
    live.points.clear()
    live.wait_until_consumed()

    assert failed_evaluation(live.dagster) is None
    assert live.counted(name) == expected
    assert live.leftovers() == []
