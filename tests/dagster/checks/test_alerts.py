"""`build_pgque_alerts`: `notify` is called once when a problem begins, and once when it is over."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import Alert, PgqueResource, build_pgque_alerts
from pgque_dagster.checks.alert_cursor import AlertCursor, GivenUp, Problem
from pgque_dagster.client import Client
from pgque_dagster.client.calls.states import hold
from tests.support.checks import give_up, make_older
from tests.support.events import claim, make_queue, publish, tick

AWAY = "postgresql://nobody@127.0.0.1:1/none"


class OnCall:
    """Receives the alerts of a sensor and evaluates it, each time with the cursor of the last."""

    def __init__(self, client: Client, *queues: str, **options: Any) -> None:
        self.notified: list[Alert] = []
        self.fails_on: str | None = None
        self.cursor: str | None = None
        self._url = client.url
        self._sensor = build_pgque_alerts(queues or ("orders",), notify=self.notify, **options)

    def notify(self, alert: Alert) -> None:
        if self.fails_on is not None and self.fails_on in alert.problem:
            raise OSError("the pager is away")
        self.notified.append(alert)

    def evaluate(self, url: str | None = None) -> list[str]:
        """Returns the problems that one evaluation notifies, with a minus if they are over."""
        before = len(self.notified)
        context = dg.build_sensor_context(cursor=self.cursor)
        result = self._sensor(context, pgque=PgqueResource(url=url or self._url))
        self.cursor = result.cursor
        new = self.notified[before:]
        return [("-" if alert.is_over else "") + alert.problem for alert in new]


def hold_batch(client: Client, consumer: str = "revenue") -> None:
    batch = claim(client, consumer=consumer)
    batch.release()
    client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))


def test_a_queue_that_is_well_rings_for_nobody(client: Client) -> None:
    tick(client)

    assert OnCall(client).evaluate() == []


def test_a_held_batch_is_told_once_and_once_when_it_is_over(client: Client) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)

    assert on_call.evaluate() == ["held_batch:revenue:1"]
    assert on_call.evaluate() == []
    claim(client).ack()
    assert on_call.evaluate() == ["-held_batch:revenue:1"]
    assert on_call.evaluate() == []

    begun, over = on_call.notified
    assert (begun.queue, begun.since) == ("orders", over.since)
    assert "after 3 attempts; correct the cause" in begun.detail
    assert over.detail == "it is no longer found"
    assert str(begun).startswith("pgque: queue orders: held_batch:revenue:1, since ")
    assert "held_batch:revenue:1 is over, since " in str(over)


def test_a_second_consumer_with_a_held_batch_is_a_problem_of_its_own(client: Client) -> None:
    client.register_consumer("orders", "audit")
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)

    assert on_call.evaluate() == ["held_batch:revenue:1"]
    hold_batch(client, "audit")
    assert on_call.evaluate() == ["held_batch:audit:2"]


def test_rotation_that_is_stuck_rings(client: Client, sql: Callable[[str], None]) -> None:
    on_call = OnCall(client)
    client.send("orders", "a")
    sql("update pgque.queue set queue_switch_time = now() - interval '1 day'")

    assert on_call.evaluate() == ["rotation_health"]
    assert "last rotation" in on_call.notified[0].detail


def test_a_consumer_is_behind_from_the_lag_that_was_asked_for(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    publish(client, ["a"])
    strict = OnCall(client, max_lag=timedelta(minutes=30))
    patient = OnCall(client, max_lag=timedelta(hours=2))

    assert patient.evaluate() == []
    assert strict.evaluate() == ["consumer_lag:revenue"]
    assert "behind, 0:30:00 allowed" in strict.notified[0].detail
    claim(client).ack()
    assert strict.evaluate() == ["-consumer_lag:revenue"]


def test_more_dead_letters_ring_once_and_are_over_an_hour_after_the_last(client: Client) -> None:
    on_call = OnCall(client)
    assert on_call.evaluate() == []
    give_up(client, "a")

    assert on_call.evaluate() == ["dead_letters"]
    give_up(client, "b")
    assert on_call.evaluate() == []
    assert (
        "dlq_summary" in on_call.notified[0].detail or "dlq_inspect" in on_call.notified[0].detail
    )

    cursor = AlertCursor.read(on_call.cursor)
    assert cursor.given_up["orders"].ever == 2
    long_ago = datetime.now(UTC) - timedelta(minutes=61)
    on_call.cursor = AlertCursor(cursor.notified, {"orders": GivenUp(2, long_ago)}).write()
    assert on_call.evaluate() == ["-dead_letters"]
    assert on_call.evaluate() == []
    give_up(client, "c")
    assert on_call.evaluate() == ["dead_letters"]


def test_dead_letters_that_wait_at_the_first_look_ring(client: Client) -> None:
    give_up(client, "a")

    assert OnCall(client).evaluate() == ["dead_letters"]


def test_dead_letters_that_were_dealt_with_before_the_first_look_do_not_ring(
    client: Client,
) -> None:
    give_up(client, "a")
    client.purge_dead_letters("orders", timedelta(0))

    assert OnCall(client).evaluate() == []


def test_a_database_that_is_away_is_told_once_and_leaves_the_other_problems_as_they_are(
    client: Client,
) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)
    on_call.evaluate()

    assert on_call.evaluate(AWAY) == ["database"]
    assert on_call.evaluate(AWAY) == []
    assert on_call.notified[-1].queue is None
    assert "Check that the server runs" in on_call.notified[-1].detail
    assert on_call.evaluate() == ["-database"]
    assert on_call.evaluate() == []


def test_dead_letters_given_up_while_the_database_was_away_from_the_sensor_still_ring(
    client: Client,
) -> None:
    on_call = OnCall(client)
    on_call.evaluate()
    on_call.evaluate(AWAY)
    give_up(client, "a")

    assert on_call.evaluate() == ["dead_letters", "-database"]


def test_an_alert_that_could_not_be_told_makes_the_evaluation_red_and_is_told_again(
    client: Client,
) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)
    on_call.fails_on = "held_batch"

    for _ in range(2):
        with pytest.raises(OSError, match="the pager is away") as caught:
            on_call.evaluate()
        assert (
            "alert not sent: pgque: queue orders: held_batch:revenue" in caught.value.__notes__[0]
        )
    on_call.fails_on = None
    assert on_call.evaluate() == ["held_batch:revenue:1"]


def test_what_was_told_beside_an_alert_that_failed_is_not_told_twice(
    client: Client, sql: Callable[[str], None]
) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)
    sql("update pgque.queue set queue_switch_time = now() - interval '1 day'")
    on_call.fails_on = "held_batch"

    assert on_call.evaluate() == ["rotation_health"]
    with pytest.raises(OSError, match="the pager is away"):
        on_call.evaluate()
    on_call.fails_on = None
    assert on_call.evaluate() == ["held_batch:revenue:1"]


def test_growth_that_could_not_be_told_is_not_forgotten(client: Client) -> None:
    on_call = OnCall(client)
    on_call.evaluate()
    give_up(client, "a")
    publish(client, ["b"])
    hold_batch(client)
    on_call.fails_on = "dead_letters"
    assert on_call.evaluate() == ["held_batch:revenue:2"]
    cursor = AlertCursor.read(on_call.cursor)
    long_ago = datetime.now(UTC) - timedelta(days=1)
    on_call.cursor = AlertCursor(cursor.notified, {"orders": GivenUp(1, long_ago)}).write()
    on_call.fails_on = None

    assert on_call.evaluate() == ["dead_letters"]


def test_a_queue_that_does_not_exist_rings_until_it_does(client: Client) -> None:
    on_call = OnCall(client, "returns")

    assert on_call.evaluate() == ["queue"]
    make_queue(client, "returns")
    assert on_call.evaluate() == ["-queue"]


def test_other_queues_stay_out(client: Client, sql: Callable[[str], None]) -> None:
    make_queue(client, "returns")
    for queue in ("orders", "returns"):
        client.send(queue, "a")
    sql("update pgque.queue set queue_switch_time = now() - interval '1 day'")
    on_call = OnCall(client, "returns")

    assert on_call.evaluate() == ["rotation_health"]
    assert on_call.notified[0].queue == "returns"


def test_a_cursor_reads_what_it_wrote_and_another_knows_nothing() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    cursor = AlertCursor(
        {Problem("orders", "held_batch:été"): now, Problem("", "database"): now},
        {"orders": GivenUp(3, now), "returns": GivenUp(0, None)},
    )

    assert AlertCursor.read(cursor.write()) == cursor
    for other in (None, "", "[]", "{}", '{"version": 9}', '{"version": 1, "told": [1]}'):
        assert AlertCursor.read(other) == AlertCursor()


@pytest.mark.parametrize(
    ("queues", "options"),
    [
        ([], {}),
        (["orders"], {"interval": timedelta(0)}),
        (["orders"], {"max_lag": timedelta(0)}),
    ],
)
def test_alerts_that_could_never_ring_are_refused(
    queues: list[str], options: dict[str, Any]
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        build_pgque_alerts(queues, notify=print, **options)


def test_a_second_batch_held_between_two_looks_is_told(client: Client) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)
    assert on_call.evaluate() == ["held_batch:revenue:1"]

    claim(client).ack()
    publish(client, ["b"])
    hold_batch(client)

    assert on_call.evaluate() == ["held_batch:revenue:2", "-held_batch:revenue:1"]
