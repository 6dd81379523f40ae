"""Retention: events and the ticks over them stay although everybody has consumed them."""

from datetime import datetime, timedelta

import pytest

from tests.support.queues.halves import catch_up
from tests.support.queues.metrics import health
from tests.support.queues.sql import Connection, refused

WEEK = timedelta(days=7)
STEP = timedelta(hours=12)
COUNT = 30


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
        db.value("select pgque.maint()")


def everything_from(db: Connection, tick_id: int) -> list[str]:
    """What a consumer gets that starts at a tick."""
    db.value("select pgque.register_consumer_at('q', 'again', %s)", tick_id)
    found = db.drain(consumer="again")
    db.value("select pgque.unregister_consumer('q', 'again')")
    return found


def test_ticks_stay_for_the_retention_too(db: Connection) -> None:
    db.make_queue(retention="1 hour")
    first = db.last_tick()
    db.bloat_ticks(3000)
    pass_time(db, timedelta(hours=2))
    newer = db.tick()
    db.publish("a")
    db.bloat_ticks(10)
    catch_up(db, "c")
    assert db.compact_ticks() == 1
    kept = [tick_id for (tick_id,) in db.rows("select tick_id from pgque.tick order by 1")]
    # The newest one that is older stays: it begins the hour.
    assert (first in kept, kept[0]) == (False, newer - 1)
    assert everything_from(db, newer) == ["a"]
    db.value("select pgque.set_queue_config('q', 'retention', null)")
    db.bloat_ticks(3000)
    catch_up(db, "c")
    assert db.compact_ticks() == 1
    assert db.value("select count(*) from pgque.tick") <= 2


@pytest.mark.parametrize("consumers", [(), ("c",)])
def test_a_retention_holds_from_the_next_maintenance_on_with_or_without_consumers(
    db: Connection, consumers: tuple[str, ...]
) -> None:
    db.make_queue(consumers=consumers, retention="1 minute")
    start = db.last_tick()
    db.publish("a")
    if consumers:
        db.drain()
    pass_time(db, timedelta(hours=5))
    db.value("select pgque.set_queue_config('q', 'retention', '1 day')")
    for _ in range(3):
        db.tick()
        maintain(db)
        pass_time(db, timedelta(hours=5))
    assert everything_from(db, start) == ["a"]


def test_a_retention_that_ends_lets_the_next_rotations_empty_the_tables(db: Connection) -> None:
    db.make_queue(retention="7 days")
    db.publish("a")
    db.drain()
    pass_time(db, timedelta(days=4))
    held = [db.rotate() for _ in range(4)], db.stored_payloads()
    db.value("select pgque.set_queue_config('q', 'retention', null)")
    for _ in range(3):
        db.rotate()
    assert (held, db.stored_payloads()) == (([1, 0, 0, 0], {"a"}), set())


def test_a_time_within_the_retention_can_always_be_sought(db: Connection) -> None:
    """After compaction and rotation, up to the retention's last second."""
    db.make_queue(retention="7 days")
    for number in range(COUNT):
        db.publish(str(number))
        db.bloat_ticks(20)
        catch_up(db, "c")
        pass_time(db, STEP)
        maintain(db)
    since = datetime.now().astimezone() - WEEK + timedelta(minutes=1)
    db.value("select pgque.register_consumer('q', 'week', %s)", since.isoformat())
    expected = [str(number) for number in range(COUNT - int(WEEK / STEP) + 1, COUNT)]
    assert db.drain(consumer="week")[-len(expected) :] == expected


def test_what_is_no_retention_is_refused(q: Connection) -> None:
    for retention in ("0", "-1 day", "soon", "2000 years"):
        with refused("PQ005", "retention"):
            q.value("select pgque.set_queue_config('q', 'retention', %s)", retention)


class TestHealth:
    def test_rotation_that_does_not_come_in_time_is_an_alarm(self, db: Connection) -> None:
        db.make_queue(retention="7 days")
        db.publish("a")
        pass_time(db, timedelta(days=15))
        assert health(db)["rotation_health"][0] == "critical"

    def test_ticks_of_the_retention_are_no_log_that_grows(self, db: Connection) -> None:
        db.make_queue(retention="7 days")
        db.bloat_ticks(200_000)
        catch_up(db, "c")
        db.empty_halves()
        db.execute("update pgque.config set installed_at = now() - interval '1 hour'")
        db.execute("update pgque.log_rotation set rotated_at = now() - interval '1 hour'")
        assert health(db, None)["log_rotation"][0] == "ok"
        db.value("select pgque.set_queue_config('q', 'retention', null)")
        assert health(db, None)["log_rotation"][0] == "warning"


def test_ticks_are_found_by_time_whatever_their_numbers(db: Connection) -> None:
    """External ticks have gaps between their numbers."""
    db.make_queue(external_ticker="true", retention="1 hour")
    ticks = [(10, "5 hours"), (1000, "2 hours"), (1001, "61 minutes"), (5000, "59 minutes")]
    for number, age in ticks:
        sql = "select pgque.ticker('q', %s, clock_timestamp() - %s::interval, 0)"
        db.value(sql, number, age)
    db.execute("update pgque.tick_log set tick_time = now() - interval '1 day' where tick_id = 1")
    found = [db.value("select pgque.find_retention_tick(q) from pgque.queue q")]
    for retention in ("59 minutes", "3 hours", "30 minutes", "2 days"):
        db.value("select pgque.set_queue_config('q', 'retention', %s)", retention)
        found.append(db.value("select pgque.find_retention_tick(q) from pgque.queue q"))
    assert found == [1001, 5000, 10, 5000, 1]


def test_a_retention_that_is_set_later_brings_no_rotated_event_back(q: Connection) -> None:
    first = q.last_tick()
    q.publish("gone")
    q.drain()
    while q.stored_payloads():
        q.rotate()
    q.value("select pgque.set_queue_config('q', 'retention', '1 hour')")
    pass_time(q, timedelta(minutes=40))
    assert q.rotate() == 1
    with refused("PQ005"):
        q.value("select pgque.register_consumer_at('q', 'again', %s)", first)
    assert everything_from(q, q.value("select tick_id from pgque.seek('q', 'c', 'earliest')")) == []
