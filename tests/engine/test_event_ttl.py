"""event_ttl: events that were too old when their batch was opened are in none of its readings."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    drain,
    finish,
    make_queue,
    next_batch,
    payloads,
    queue_id,
    refused,
    rows,
    send,
    tick,
    value,
)

OLD = ["old 1", "old 2"]
NEW = ["new 1", "new 2"]


def age(db: Connection, pattern: str, by: str = "1 hour", queue: str = "q") -> None:
    """Makes events as old as if they had been sent earlier."""
    db.execute(
        f"update pgque.event_{queue_id(db, queue)} set ev_time = ev_time - %s::interval"
        " where ev_data like %s".encode(),
        [by, pattern],
    )


def queue_with_old_and_new(db: Connection, ttl: str | None = "10 minutes", skip: int = 0) -> None:
    """A ticked queue; with `skip`, of a batch that spans so many more event ids."""
    make_queue(db)
    value(db, "select pgque.set_queue_config('q', 'event_ttl', %s)", ttl)
    send(db, *OLD, *NEW)
    age(db, "old%")
    value(
        db,
        "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, %s)",
        skip,
    )
    tick(db)


def through_functions(db: Connection, batch: int) -> list[str]:
    return payloads(db, batch)


def through_sql(db: Connection, batch: int) -> list[str]:
    sql = value(db, "select pgque.batch_event_sql(%s)", batch)
    return [row[5] for row in rows(db, sql)]


def through_read_plan(db: Connection, batch: int) -> list[str]:
    plan = rows(db, "select slice_sql from pgque.batch_read_plan(%s, 4)", batch)
    return sorted(row[5] for (sql,) in plan for row in rows(db, sql))


def through_cursor(db: Connection, batch: int) -> list[str]:
    with db.transaction():
        sql = "select ev_data from pgque.get_batch_cursor(%s, 'here', 10)"
        return [text for (text,) in rows(db, sql, batch)]


def through_receive(db: Connection, batch: int) -> list[str]:
    return [text for (text,) in rows(db, "select payload from pgque.receive('q', 'c')")]


READINGS = [
    through_functions,
    through_sql,
    through_read_plan,
    through_cursor,
    through_receive,
]


@pytest.mark.parametrize("read", READINGS)
@pytest.mark.parametrize("skip", [0, 1_000], ids=["small batch", "large batch"])
class TestEachReading:
    def test_skips_expired_events(
        self, db: Connection, read: Callable[[Connection, int], list[str]], skip: int
    ) -> None:
        queue_with_old_and_new(db, skip=skip)
        assert read(db, next_batch(db)) == NEW

    def test_has_all_events_without_a_ttl(
        self, db: Connection, read: Callable[[Connection, int], list[str]], skip: int
    ) -> None:
        queue_with_old_and_new(db, ttl=None, skip=skip)
        assert sorted(read(db, next_batch(db))) == NEW + OLD

    def test_stays_the_same_while_events_grow_older(
        self, db: Connection, read: Callable[[Connection, int], list[str]], skip: int
    ) -> None:
        queue_with_old_and_new(db, ttl="2 seconds", skip=skip)
        batch = next_batch(db)
        value(db, "select pg_sleep(2.1)::text")
        assert read(db, batch) == NEW

    def test_stays_the_same_when_the_ttl_is_changed(
        self, db: Connection, read: Callable[[Connection, int], list[str]], skip: int
    ) -> None:
        queue_with_old_and_new(db, skip=skip)
        batch = next_batch(db)
        value(db, "select pgque.set_queue_config('q', 'event_ttl', '1 year')")
        assert read(db, batch) == NEW


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY", "ISO"])
def test_the_sql_of_a_batch_reads_alike_under_each_date_style(db: Connection, style: str) -> None:
    queue_with_old_and_new(db)
    batch = next_batch(db)
    db.execute(f"set datestyle = '{style}'".encode())
    sql = value(db, "select pgque.batch_event_sql(%s)", batch)
    db.execute("set datestyle = 'ISO, YMD'")
    assert [row[5] for row in rows(db, sql)] == NEW


def test_renewals_of_the_lease_keep_the_cutoff(db: Connection) -> None:
    queue_with_old_and_new(db)
    ((batch, epoch),) = rows(db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me')")
    value(db, "select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
    assert payloads(db, batch) == NEW


def test_the_next_batch_has_a_cutoff_of_its_own(db: Connection) -> None:
    queue_with_old_and_new(db)
    finish(db, next_batch(db))
    value(db, "select pgque.set_queue_config('q', 'event_ttl', null)")
    send(db, "old 3")
    age(db, "old 3")
    tick(db)
    assert payloads(db, next_batch(db)) == ["old 3"]


def test_the_subscription_shows_the_cutoff_of_the_open_batch(db: Connection) -> None:
    queue_with_old_and_new(db)
    shown = (
        "select event_cutoff between now() - interval '11 minutes' and now()"
        " from pgque.subscription"
    )
    batch = next_batch(db)
    during = value(db, shown)
    finish(db, batch)
    assert (during, value(db, shown)) == (True, None)


def test_a_batch_of_expired_events_alone_is_empty(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes")
    send(db, *OLD)
    age(db, "old%")
    tick(db)
    assert drain(db) == []


def test_receive_passes_a_batch_of_expired_events(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes")
    send(db, *OLD)
    age(db, "old%")
    tick(db)
    send(db, *NEW)
    tick(db)
    assert through_receive(db, 0) == NEW


def test_an_event_that_is_delivered_again_keeps_its_time_and_expires(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes")
    send(db, *NEW)
    tick(db)
    batch = next_batch(db)
    ids = [row[0] for row in rows(db, "select ev_id from pgque.get_batch_events(%s)", batch)]
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, ids)
    finish(db, batch)
    value(db, "select pgque.maint_retry_events()")
    age(db, "new 1")
    tick(db)
    assert drain(db) == ["new 2"]


def test_an_expired_event_is_not_in_the_batch_for_nack(db: Connection) -> None:
    queue_with_old_and_new(db)
    with refused("PQ009", "event 1"):
        value(db, "select pgque.nack_batch(%s, '{1}')", next_batch(db))


class TestASubconsumer:
    NEXT = "select pgque.next_batch('q', 'shared', %s, %s)"

    def queue(self, db: Connection) -> None:
        make_queue(db, event_ttl="10 minutes", consumers=())
        value(db, "select pgque.register_subconsumer('q', 'shared', 'w1')")
        send(db, *OLD, *NEW)
        age(db, "old%")
        tick(db)

    def test_skips_expired_events(self, db: Connection) -> None:
        self.queue(db)
        assert payloads(db, value(db, self.NEXT, "w1", None)) == NEW

    def test_takes_over_the_cutoff_with_the_batch(self, db: Connection) -> None:
        self.queue(db)
        value(db, self.NEXT, "w1", None)
        value(db, "select pgque.set_queue_config('q', 'event_ttl', null)")
        assert payloads(db, value(db, self.NEXT, "w2", "0")) == NEW


def test_a_slot_skips_expired_events(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes", consumers=())
    value(db, "select pgque.subscribe_slot('q', 'keys', 0, 1)")
    send(db, *OLD, *NEW)
    age(db, "old%")
    tick(db)
    value(db, "select pgque.claim_slot('q', 'keys', 0, 'me')")
    received = rows(db, "select payload from pgque.receive_partitioned('q', 'keys', 0, 1, 'me')")
    assert [text for (text,) in received] == NEW


@pytest.mark.parametrize("ttl", ["0", "-1 second", "1001 years", "soon"])
def test_a_ttl_that_is_none_is_refused(db: Connection, ttl: str) -> None:
    make_queue(db)
    with refused("PQ005", ttl, "event_ttl"):
        value(db, "select pgque.set_queue_config('q', 'event_ttl', %s)", ttl)


def test_compaction_keeps_the_cutoff(db: Connection) -> None:
    queue_with_old_and_new(db)
    batch = next_batch(db)
    cutoff: Any = value(db, "select event_cutoff from pgque.subscription")
    db.execute(
        "insert into pgque.position_log_0"
        " (sub_id, pos_seq, sub_last_tick, sub_active, lease_epoch, next_half)"
        " select sub_id, -nr, 1, now(), 0, 0"
        " from pgque.subscription_base, generate_series(1, 3000) nr"
    )
    assert value(db, "select pgque.maint_compact_positions()") > 2000
    assert value(db, "select event_cutoff from pgque.subscription") == cutoff
    assert payloads(db, batch) == NEW
