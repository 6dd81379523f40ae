"""`build_pgque_alerts`: `notify` is called once when a problem begins, and once when it is over."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import Alert, PgqueResource, build_pgque_alerts
from pgque_dagster.checks.alert_cursor import AlertCursor, Problem
from pgque_dagster.client import Client
from pgque_dagster.client.batch import hold
from tests.support.dagster.checks import give_up, make_older
from tests.support.queues.events import claim, make_queue, publish, tick

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


def make_rotation_stuck(sql: Callable[[str], None], client: Client, *queues: str) -> None:
    for queue in queues:
        client.send(queue, "a")
    sql("update pgque.queue set queue_switch_time = now() - interval '1 day'")


def make_dead_letters_older(sql: Callable[[str], None], age: str) -> None:
    sql(f"update pgque.dead_letter set dl_time = dl_time - interval '{age}'")


def test_a_held_batch_is_told_once_and_once_when_it_is_over(client: Client) -> None:
    client.register_consumer("orders", "audit")
    tick(client)
    on_call = OnCall(client)
    assert on_call.evaluate() == []
    publish(client, ["a"])
    hold_batch(client)

    assert on_call.evaluate() == ["held_batch:revenue:1"]
    hold_batch(client, "audit")
    assert on_call.evaluate() == ["held_batch:audit:2"]
    assert on_call.evaluate() == []
    claim(client, consumer="audit").ack()
    assert on_call.evaluate() == ["-held_batch:audit:2"]
    # Another batch of the same consumer, held between two looks.
    claim(client).ack()
    publish(client, ["b"])
    hold_batch(client)
    assert on_call.evaluate() == ["held_batch:revenue:3", "-held_batch:revenue:1"]
    assert on_call.evaluate() == []

    begun, *_, over = on_call.notified
    assert (begun.queue, begun.since) == ("orders", over.since)
    assert "after 3 attempts; correct the cause" in begun.detail
    assert over.detail == "it is no longer found"
    assert str(begun).startswith("pgque: queue orders: held_batch:revenue:1, since ")
    assert "held_batch:revenue:1 is over, since " in str(over)


def test_rotation_that_is_stuck_rings_for_the_queues_that_are_watched(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_queue(client, "returns")
    make_rotation_stuck(sql, client, "orders", "returns")
    on_call = OnCall(client, "returns")

    assert on_call.evaluate() == ["rotation_health"]
    assert on_call.notified[0].queue == "returns"
    assert "last rotation" in on_call.notified[0].detail


def test_a_consumer_is_behind_from_the_lag_that_was_asked_for(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    publish(client, ["a"])
    strict = OnCall(client, max_lag=timedelta(minutes=30))
    assert strict.evaluate() == [], "the event is new, after a quiet hour"
    make_older(sql, and_events=True)
    client.force_next_tick("orders")
    client.ticker()

    assert OnCall(client, max_lag=timedelta(hours=2)).evaluate() == []
    assert strict.evaluate() == ["consumer_lag:revenue"]
    assert "behind, 0:30:00 allowed" in strict.notified[0].detail
    claim(client).ack()
    assert strict.evaluate() == ["-consumer_lag:revenue"]


def test_more_dead_letters_ring_once_and_are_over_an_hour_after_the_last(
    client: Client, sql: Callable[[str], None]
) -> None:
    on_call = OnCall(client)
    assert on_call.evaluate() == []
    give_up(client, "a")

    assert on_call.evaluate() == ["dead_letters"]
    assert "1 are stored. Inspect them: `select * from pgque.dlq_" in on_call.notified[0].detail
    make_dead_letters_older(sql, "61 minutes")
    give_up(client, "b")
    assert on_call.evaluate() == []
    make_dead_letters_older(sql, "61 minutes")
    assert on_call.evaluate() == ["-dead_letters"]
    assert on_call.evaluate() == []
    # Between two looks, of which the second one comes late.
    give_up(client, "c")
    make_dead_letters_older(sql, "61 minutes")
    assert on_call.evaluate() == ["dead_letters"]
    client.purge_dead_letters("orders", timedelta(0))
    assert on_call.evaluate() == ["-dead_letters"]


def test_dead_letters_ring_at_the_first_look_if_they_still_wait(client: Client) -> None:
    give_up(client, "a")

    assert OnCall(client).evaluate() == ["dead_letters"]
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
    client.register_consumer("orders", "audit")
    give_up(client, "b", consumer="audit")
    assert on_call.evaluate() == ["dead_letters", "-database"]
    assert on_call.evaluate() == []


def test_an_alert_that_could_not_be_told_makes_the_evaluation_red_and_is_told_again(
    client: Client, sql: Callable[[str], None]
) -> None:
    on_call = OnCall(client)
    publish(client, ["a"])
    hold_batch(client)
    make_rotation_stuck(sql, client, "orders")
    on_call.fails_on = "held_batch"

    # What was told beside it is not told twice.
    assert on_call.evaluate() == ["rotation_health"]
    for _ in range(2):
        with pytest.raises(OSError, match="the pager is away") as caught:
            on_call.evaluate()
        note = caught.value.__notes__[0]
        assert "alert not sent: pgque: queue orders: held_batch:revenue" in note
    on_call.fails_on = None
    assert on_call.evaluate() == ["held_batch:revenue:1"]


def test_growth_that_could_not_be_told_is_not_forgotten(
    client: Client, sql: Callable[[str], None]
) -> None:
    on_call = OnCall(client)
    on_call.evaluate()
    give_up(client, "a")
    publish(client, ["b"])
    hold_batch(client)
    on_call.fails_on = "dead_letters"
    assert on_call.evaluate() == ["held_batch:revenue:2"]
    make_dead_letters_older(sql, "1 day")
    on_call.fails_on = None

    assert on_call.evaluate() == ["dead_letters"]


def test_a_queue_that_does_not_exist_rings_until_it_does(client: Client) -> None:
    on_call = OnCall(client, "returns")

    assert on_call.evaluate() == [], "it may be created just now"
    assert on_call.evaluate() == ["queue"]
    make_queue(client, "returns")
    assert on_call.evaluate() == ["-queue"]


def test_a_cursor_reads_what_it_wrote_and_another_knows_nothing() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    cursor = AlertCursor(
        notified=[(Problem("orders", "held_batch:été"), now), (Problem("", "database"), now)],
        dead_letters={"orders": 3},
    )

    assert AlertCursor.read(cursor.model_dump_json()) == cursor
    for other in (None, "", "[]", "{}", '{"version": 9}', '{"version": 2, "notified": [1]}'):
        assert AlertCursor.read(other) == AlertCursor()


@pytest.mark.parametrize(
    ("queues", "options"),
    [([], {}), (["orders"], {"interval": timedelta(0)}), (["orders"], {"max_lag": timedelta(0)})],
)
def test_alerts_that_could_never_ring_are_refused(
    queues: list[str], options: dict[str, Any]
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        build_pgque_alerts(queues, notify=print, **options)
