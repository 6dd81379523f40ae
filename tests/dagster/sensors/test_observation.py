"""`build_pgque_observation_sensor`: the numbers of each queue, one observation per interval."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, build_pgque_observation_sensor, queue_key
from pgque_dagster.client import Client
from pgque_dagster.sensors.observation import ObservationCursor
from tests.support.events import claim, make_queue, publish, tick

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def evaluate(
    sensor: dg.SensorDefinition, url: str, cursor: str | None = None
) -> dg.SensorResult | str:
    """Returns what the sensor observed, or its skip reason."""
    result = sensor(dg.build_sensor_context(cursor=cursor), pgque=PgqueResource(url=url))
    return str(result.skip_message) if isinstance(result, dg.SkipReason) else result


def numbers(result: dg.SensorResult | str) -> dict[str, dict[str, object]]:
    """The metadata of the observations, by queue."""
    assert isinstance(result, dg.SensorResult)
    return {
        str(event.metadata["pgque/queue"].value): {
            name: each.value for name, each in event.metadata.items()
        }
        for event in result.asset_events
    }


def test_each_queue_is_one_observation_with_its_numbers(client: Client) -> None:
    make_queue(client, "returns", "stock")
    make_queue(client, "unobserved", "nobody")
    publish(client, ["a", "b", "c"])
    batch = claim(client)
    batch.dead_letter([batch.events()[0].msg_id], reason="no good")
    batch.ack()
    publish(client, ["d", "e"])

    result = evaluate(build_pgque_observation_sensor(["orders", "returns"]), client.url)

    found = numbers(result)
    assert isinstance(result, dg.SensorResult)
    assert [event.asset_key for event in result.asset_events] == [
        queue_key("orders"),
        queue_key("returns"),
    ]
    assert found["orders"]["pgque/depth"] == 2
    assert found["orders"]["pgque/dead_letters"] == 1
    assert found["orders"]["pgque/consumers"] == 1
    assert found["returns"]["pgque/depth"] == 0


def test_every_number_is_there_each_time_so_that_plots_have_no_gaps(client: Client) -> None:
    sensor = build_pgque_observation_sensor(["orders"])
    idle = numbers(evaluate(sensor, client.url))["orders"]
    publish(client, ["a"])
    busy = numbers(evaluate(sensor, client.url))["orders"]

    assert idle.keys() == busy.keys()
    for found in (idle, busy):
        del found["pgque/queue"]
        assert all(isinstance(value, int | float) for value in found.values())


def test_lag_and_age_are_of_events_that_wait_and_nought_without_them(client: Client) -> None:
    sensor = build_pgque_observation_sensor(["orders"])
    tick(client)  # The consumer is behind it, but no event waits.
    idle = numbers(evaluate(sensor, client.url))["orders"]
    publish(client, ["a"])
    busy = numbers(evaluate(sensor, client.url))["orders"]

    for name in ("lag_seconds", "lag_seconds/revenue", "oldest_event_seconds"):
        assert idle[f"pgque/{name}"] == 0.0, name
        assert float(str(busy[f"pgque/{name}"])) > 0, name
    assert float(str(busy["pgque/rotation_age_seconds"])) > 0
    assert float(str(busy["pgque/events_per_second"])) > 0


def test_a_second_observation_comes_no_sooner_than_the_interval(client: Client) -> None:
    sensor = build_pgque_observation_sensor(["orders"], interval=HOUR)
    first = evaluate(sensor, client.url)
    assert isinstance(first, dg.SensorResult)

    assert "next observation is due" in str(evaluate(sensor, client.url, first.cursor))
    long_ago = ObservationCursor(datetime.now(UTC) - 2 * HOUR).write()
    assert isinstance(evaluate(sensor, client.url, long_ago), dg.SensorResult)


def test_a_queue_that_does_not_exist_keeps_no_other_from_being_observed(client: Client) -> None:
    found = numbers(evaluate(build_pgque_observation_sensor(["nosuch", "orders"]), client.url))

    assert list(found) == ["orders"]


def test_a_database_that_is_down_is_a_reason_and_no_error() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/none"

    reason = evaluate(build_pgque_observation_sensor(["orders"]), url)

    assert isinstance(reason, str)
    assert "127.0.0.1" in reason
    assert "secret" not in reason


def test_the_sensor_is_asked_again_soon_after_a_failure_though_its_interval_is_long() -> None:
    sensor = build_pgque_observation_sensor(["orders"], interval=HOUR)

    assert sensor.minimum_interval_seconds == 30


def test_a_cursor_is_read_as_it_was_written() -> None:
    assert ObservationCursor.read(ObservationCursor(NOW).write()) == ObservationCursor(NOW)
    assert ObservationCursor.read(ObservationCursor().write()) == ObservationCursor()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "null",
        "[]",
        "7",
        "nonsense",
        '{"version": 1}',
        '{"version": 2, "observed_at": "2026-05-01T12:00:00+00:00"}',
        '{"version": 1, "observed_at": "yesterday"}',
        '{"version": 1, "observed_at": 5}',
    ],
)
def test_a_cursor_of_another_form_knows_nothing(text: str | None) -> None:
    assert ObservationCursor.read(text) == ObservationCursor()


def test_a_cursor_from_the_future_does_not_stop_the_observations() -> None:
    assert ObservationCursor(NOW + HOUR).next_at(HOUR, NOW) == NOW
    assert ObservationCursor(NOW).next_at(HOUR, NOW) == NOW + HOUR


@pytest.mark.parametrize(
    ("queues", "interval", "words"),
    [([], HOUR, "no queue to observe"), (["orders"], timedelta(0), "must be more than 0")],
)
def test_a_sensor_that_makes_no_sense_is_refused(
    queues: list[str], interval: timedelta, words: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        build_pgque_observation_sensor(queues, interval=interval)
