"""event_ttl: events that were too old when their batch was opened are in none of its readings."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    compact_positions,
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


def send_old_and_new(db: Connection, skip: int = 0) -> None:
    """Ticks them; with `skip`, in a batch that spans so many more event ids."""
    send(db, *OLD, *NEW)
    age(db, "old%")
    ids = "select count(nextval(queue_event_seq)) from pgque.queue, generate_series(1, %s)"
    value(db, ids, skip)
    tick(db)


def queue_with_old_and_new(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes")
    send_old_and_new(db)


def set_ttl(db: Connection, ttl: str | None) -> None:
    value(db, "select pgque.set_queue_config('q', 'event_ttl', %s)", ttl)


def let_an_hour_pass(db: Connection) -> None:
    """Everything that is stored happened an hour earlier."""
    age(db, "%")
    db.execute("update pgque.position_log set event_cutoff = event_cutoff - interval '1 hour'")


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


@pytest.mark.parametrize("skip", [0, 1_000], ids=["small batch", "large batch"])
@pytest.mark.parametrize(
    "read",
    [through_functions, through_sql, through_read_plan, through_cursor, through_receive],
)
def test_each_reading_skips_what_was_expired_when_the_batch_was_opened(
    db: Connection, read: Callable[[Connection, int], list[str]], skip: int
) -> None:
    make_queue(db)
    send_old_and_new(db, skip)
    batch = next_batch(db)
    assert sorted(read(db, batch)) == NEW + OLD
    finish(db, batch)

    set_ttl(db, "10 minutes")
    send_old_and_new(db, skip)
    batch = next_batch(db)
    assert read(db, batch) == NEW
    let_an_hour_pass(db)
    assert read(db, batch) == NEW
    set_ttl(db, "1 year")
    assert read(db, batch) == NEW


def test_the_sql_of_a_batch_reads_alike_under_each_date_style(db: Connection) -> None:
    queue_with_old_and_new(db)
    batch = next_batch(db)
    for style in ("SQL, DMY", "German", "Postgres, MDY", "ISO"):
        db.execute(f"set datestyle = '{style}'".encode())
        sql = value(db, "select pgque.batch_event_sql(%s)", batch)
        db.execute("set datestyle = 'ISO, YMD'")
        assert [row[5] for row in rows(db, sql)] == NEW


def test_each_batch_has_a_cutoff_of_its_own_that_renewals_keep(db: Connection) -> None:
    queue_with_old_and_new(db)
    ((batch, epoch),) = rows(db, "select batch_id, epoch from pgque.claim_batch('q', 'c', 'me')")
    value(db, "select pgque.renew_batch(%s, 'me', %s)", batch, epoch)
    assert payloads(db, batch) == NEW
    recent = "event_cutoff between now() - interval '11 minutes' and now()"
    assert value(db, f"select {recent} from pgque.subscription") is True
    value(db, "select pgque.ack_batch(%s, 'me', %s)", batch, epoch)
    assert value(db, "select event_cutoff from pgque.subscription") is None
    set_ttl(db, None)
    send(db, "old 3")
    age(db, "old 3")
    tick(db)
    assert payloads(db, next_batch(db)) == ["old 3"]


def test_a_batch_of_expired_events_alone_is_empty_and_receive_passes_it(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes")
    send(db, *OLD)
    age(db, "old%")
    tick(db)
    batch = next_batch(db)
    assert payloads(db, batch) == []
    send(db, *NEW)
    tick(db)
    assert through_receive(db, batch) == NEW


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


def test_a_subconsumer_skips_expired_events_and_takes_over_the_cutoff(db: Connection) -> None:
    take = "select pgque.next_batch('q', 'shared', %s, %s)"
    make_queue(db, event_ttl="10 minutes", consumers=())
    value(db, "select pgque.register_subconsumer('q', 'shared', 'w1')")
    send_old_and_new(db)
    assert payloads(db, value(db, take, "w1", None)) == NEW
    set_ttl(db, None)
    assert payloads(db, value(db, take, "w2", "0")) == NEW


def test_a_slot_skips_expired_events(db: Connection) -> None:
    make_queue(db, event_ttl="10 minutes", consumers=())
    value(db, "select pgque.subscribe_slot('q', 'keys', 0, 1)")
    send_old_and_new(db)
    value(db, "select pgque.claim_slot('q', 'keys', 0, 'me')")
    received = rows(db, "select payload from pgque.receive_partitioned('q', 'keys', 0, 1, 'me')")
    assert [text for (text,) in received] == NEW


def test_a_ttl_that_is_none_is_refused(db: Connection) -> None:
    make_queue(db)
    for ttl in ("0", "-1 second", "1001 years", "soon"):
        with refused("PQ005", ttl, "event_ttl"):
            set_ttl(db, ttl)


def test_compaction_keeps_the_cutoff(db: Connection) -> None:
    queue_with_old_and_new(db)
    batch = next_batch(db)
    cutoff = value(db, "select event_cutoff from pgque.subscription")
    assert compact_positions(db) > 2000
    assert value(db, "select event_cutoff from pgque.subscription") == cutoff
    assert payloads(db, batch) == NEW
