"""Retention: events and the ticks over them stay although everybody has consumed them."""

from datetime import datetime, timedelta

import pytest

from tests.support.halves import catch_up
from tests.support.metrics import health
from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_ticks,
    drain,
    empty_halves,
    last_tick,
    make_queue,
    refused,
    rotate,
    rows,
    send,
    stored_payloads,
    tick,
    value,
)

WEEK = timedelta(days=7)
STEP = timedelta(hours=6)


def pass_time(db: Connection, time: timedelta, queue: str = "q") -> None:
    """Makes all that happened in a queue so much older."""
    db.execute(
        "update pgque.tick_log t set tick_time = tick_time - %s from pgque.queue q"
        " where t.tick_queue = q.queue_id and q.queue_name = %s",
        [time, queue],
    )
    db.execute(
        "update pgque.queue set queue_switch_time = queue_switch_time - %s where queue_name = %s",
        [time, queue],
    )
    db.execute("update pgque.log_rotation set rotated_at = rotated_at - %s", [time])


def maintain(db: Connection) -> None:
    for _ in range(2):
        value(db, "select pgque.maint()")


def everything_from(db: Connection, tick_id: int) -> list[str]:
    """What a consumer gets that starts at a tick."""
    value(db, "select pgque.register_consumer_at('q', 'again', %s)", tick_id)
    found = drain(db, consumer="again")
    value(db, "select pgque.unregister_consumer('q', 'again')")
    return found


@pytest.mark.parametrize("rotation_period", ["2 hours", "5 days"])
def test_for_weeks_each_event_stays_for_its_retention(db: Connection, rotation_period: str) -> None:
    make_queue(db, retention="7 days", rotation_period=rotation_period)
    longest = max(1.5 * WEEK, 3 * timedelta(days=5) if rotation_period == "5 days" else WEEK)
    steps = 120
    for number in range(steps):
        send(db, str(number))
        tick(db)
        drain(db)
        pass_time(db, STEP)
        maintain(db)
        age = {str(sent): (number - sent + 1) * STEP for sent in range(number + 1)}
        stored = stored_payloads(db)
        assert {text for text in age if age[text] <= WEEK} <= stored
        # A rotation begins at a step and is one step late when a tick is not older by a second.
        assert max(age[text] for text in stored) <= longest + 2 * STEP

    earliest = value(db, "select tick_id from pgque.seek('q', 'c', 'earliest')")
    assert len(everything_from(db, earliest)) >= WEEK / STEP - 1
    assert len(stored_payloads(db)) < steps / 2


def test_ticks_stay_for_the_retention_too(db: Connection) -> None:
    make_queue(db, retention="1 hour")
    first = last_tick(db)
    bloat_ticks(db, 3000)
    pass_time(db, timedelta(hours=2))
    newer = tick(db)
    send(db, "a")
    tick(db)
    bloat_ticks(db, 10)
    catch_up(db, "c")
    assert compact_ticks(db) == 1
    kept = [tick_id for (tick_id,) in rows(db, "select tick_id from pgque.tick order by 1")]
    # The newest one that is older stays: it begins the hour.
    assert (first in kept, kept[0]) == (False, newer - 1)
    assert everything_from(db, newer) == ["a"]
    value(db, "select pgque.set_queue_config('q', 'retention', null)")
    bloat_ticks(db, 3000)
    catch_up(db, "c")
    assert compact_ticks(db) == 1
    assert value(db, "select count(*) from pgque.tick") <= 2


def test_a_consumer_behind_the_retention_keeps_its_events(db: Connection) -> None:
    make_queue(db, consumers=("fast", "slow"), retention="1 hour")
    for number in range(6):
        send(db, str(number))
        tick(db)
        drain(db, consumer="fast")
        pass_time(db, timedelta(hours=2))
        maintain(db)
    assert drain(db, consumer="slow") == list("012345")


@pytest.mark.parametrize("consumers", [(), ("c",)])
def test_a_retention_holds_from_the_next_maintenance_on_with_or_without_consumers(
    db: Connection, consumers: tuple[str, ...]
) -> None:
    make_queue(db, consumers=consumers, retention="1 minute")
    start = last_tick(db)
    send(db, "a")
    tick(db)
    if consumers:
        drain(db)
    pass_time(db, timedelta(hours=5))
    value(db, "select pgque.set_queue_config('q', 'retention', '1 day')")
    for _ in range(3):
        tick(db)
        maintain(db)
        pass_time(db, timedelta(hours=5))
    assert everything_from(db, start) == ["a"]


def test_a_retention_that_ends_lets_the_next_rotations_empty_the_tables(db: Connection) -> None:
    make_queue(db, retention="7 days")
    send(db, "a")
    tick(db)
    drain(db)
    pass_time(db, timedelta(days=4))
    held = [rotate(db) for _ in range(4)], stored_payloads(db)
    value(db, "select pgque.set_queue_config('q', 'retention', null)")
    for _ in range(3):
        rotate(db)
    assert (held, stored_payloads(db)) == (([1, 0, 0, 0], {"a"}), set())


def test_a_time_within_the_retention_can_always_be_sought(db: Connection) -> None:
    """After compaction and rotation, up to the retention's last second."""
    make_queue(db, retention="7 days")
    for number in range(60):
        send(db, str(number))
        tick(db)
        bloat_ticks(db, 20)
        catch_up(db, "c")
        pass_time(db, STEP)
        maintain(db)
    since = datetime.now().astimezone() - WEEK + timedelta(minutes=1)
    value(db, "select pgque.register_consumer('q', 'week', %s)", since.isoformat())
    expected = [str(number) for number in range(60 - int(WEEK / STEP) + 1, 60)]
    assert drain(db, consumer="week")[-len(expected) :] == expected


@pytest.mark.parametrize("retention", ["0", "-1 day", "soon", "2000 years"])
def test_what_is_no_retention_is_refused(db: Connection, retention: str) -> None:
    make_queue(db)
    with refused("PQ005", "retention"):
        value(db, "select pgque.set_queue_config('q', 'retention', %s)", retention)


class TestHealth:
    def test_rotation_that_does_not_come_in_time_is_an_alarm(self, db: Connection) -> None:
        make_queue(db, retention="7 days")
        send(db, "a")
        tick(db)
        pass_time(db, timedelta(days=15))
        assert health(db)["rotation_health"][0] == "critical"

    def test_ticks_of_the_retention_are_no_log_that_grows(self, db: Connection) -> None:
        make_queue(db, retention="7 days")
        bloat_ticks(db, 200_000)
        catch_up(db, "c")
        empty_halves(db)
        db.execute("update pgque.config set installed_at = now() - interval '1 hour'")
        db.execute("update pgque.log_rotation set rotated_at = now() - interval '1 hour'")
        assert health(db, None)["log_rotation"][0] == "ok"
        value(db, "select pgque.set_queue_config('q', 'retention', null)")
        assert health(db, None)["log_rotation"][0] == "warning"


def test_ticks_are_found_by_time_whatever_their_numbers(db: Connection) -> None:
    """External ticks have gaps between their numbers."""
    make_queue(db, external_ticker="true", retention="1 hour")
    ticks = [(10, "5 hours"), (1000, "2 hours"), (1001, "61 minutes"), (5000, "59 minutes")]
    for number, age in ticks:
        sql = "select pgque.ticker('q', %s, clock_timestamp() - %s::interval, 0)"
        value(db, sql, number, age)
    db.execute("update pgque.tick_log set tick_time = now() - interval '1 day' where tick_id = 1")
    found = [value(db, "select pgque.find_retention_tick(q) from pgque.queue q")]
    for retention in ("59 minutes", "3 hours", "30 minutes", "2 days"):
        value(db, "select pgque.set_queue_config('q', 'retention', %s)", retention)
        found.append(value(db, "select pgque.find_retention_tick(q) from pgque.queue q"))
    assert found == [1001, 5000, 10, 5000, 1]


def test_a_retention_that_is_set_later_brings_no_rotated_event_back(db: Connection) -> None:
    make_queue(db)
    first = last_tick(db)
    send(db, "gone")
    tick(db)
    drain(db)
    while stored_payloads(db):
        rotate(db)
    value(db, "select pgque.set_queue_config('q', 'retention', '1 hour')")
    pass_time(db, timedelta(minutes=40))
    assert rotate(db) == 1
    with refused("PQ005"):
        value(db, "select pgque.register_consumer_at('q', 'again', %s)", first)
    assert (
        everything_from(db, value(db, "select tick_id from pgque.seek('q', 'c', 'earliest')")) == []
    )
