"""Programs on the classes of python3-pgq run as they are."""

import re

import pytest

from tests.support.addons.pgq_programs import Programs
from tests.support.queues.sql import Connection
from tests.support.runner.waiting import wait_until

pytestmark = pytest.mark.program("python3-pgq")


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.value("select pgq.create_queue('q')")


def send(db: Connection, *payloads: str) -> None:
    for payload in payloads:
        db.value("select pgq.insert_event('q', 't', %s)", payload)
    db.tick()


def noted(db: Connection, consumer: str = "c") -> list[str]:
    sql = "select payload from sink where consumer = %s order by batch_id, ev_id"
    return [payload for (payload,) in db.rows(sql, consumer)]


def is_done(db: Connection) -> bool:
    """Whether all consumers have finished all ticks and no retry waits."""
    return bool(
        db.value(
            "select not exists (select from pgq.subscription s where sub_last_tick <"
            " (select max(tick_id) from pgq.tick) or sub_batch is not null)"
            " and not exists (select from pgq.retry_queue)"
        )
    )


@pytest.mark.parametrize("lazy_fetch", [0, 2])
def test_a_consumer_gets_each_event_once_and_a_retried_one_again(
    db: Connection, programs: Programs, lazy_fetch: int
) -> None:
    programs.call("Consumer", "--register")
    send(db, "a", "retry 1", "b", "c")
    programs.start("Consumer", pgq_lazy_fetch=lazy_fetch)
    wait_until(lambda: db.value("select count(*) from pgq.retry_queue") == 1)
    db.value("select pgq.maint_retry_events()")
    send(db, "d")
    wait_until(lambda: len(noted(db)) == 5 and is_done(db))
    found = db.rows("select payload, ev_retry from sink order by batch_id, ev_retry, payload")
    first, last = [(each, None) for each in "abc"], [("retry 1", 1), ("d", None)]
    assert found == first + last
    programs.stop()
    programs.call("Consumer", "--unregister")
    assert db.rows("select * from pgq.get_consumer_info()") == []


def test_a_consumer_filters_by_table_and_waits_for_enough_events(
    db: Connection, programs: Programs
) -> None:
    programs.call("Consumer", "--register")
    for table in ("public.a", "public.b"):
        db.value("select pgq.insert_event('q', 't', %s, %s, null, null, null)", table, table)
    db.tick()
    send(db, "c", "d")
    programs.start("Consumer", table_filter="a", pgq_batch_collect_events=3)
    wait_until(lambda: is_done(db))
    assert noted(db) == ["public.a"]
    assert db.value("select count(distinct batch_id) from sink") == 1


def test_workers_share_a_consumer(db: Connection, programs: Programs) -> None:
    workers = ("left", "right")
    for worker in workers:
        programs.call("CoopConsumer", "--register", subconsumer_name=worker)
    for number in range(20):
        send(db, f"slow {number}")
    for worker in workers:
        programs.start("CoopConsumer", subconsumer_name=worker, subconsumer_timeout="1 hour")
    wait_until(lambda: len(noted(db, "left") + noted(db, "right")) == 20)
    expected = sorted(f"slow {number}" for number in range(20))
    assert sorted(noted(db, "left") + noted(db, "right")) == expected
    programs.stop()
    for worker in workers:
        programs.call("CoopConsumer", "--unregister", subconsumer_name=worker)
    left = "select co_name from pgq.consumer, pgq.subscription where co_id = sub_consumer"
    assert db.rows(left) == [("c",)]


def test_a_local_consumer_registers_itself_and_keeps_its_position(
    db: Connection, programs: Programs
) -> None:
    sink = programs.folder / "c.tick.sink"

    def applied() -> list[str]:
        return sink.read_text().split() if sink.exists() else []

    programs.start("LocalConsumer")
    wait_until(lambda: db.rows("select * from pgq.get_consumer_info('q', 'c')"))
    send(db, "a", "b")
    wait_until(lambda: len(applied()) == 2)
    wait_until(lambda: is_done(db))
    programs.stop()
    send(db, "c")
    # The database lost the consumer, so it is registered anew where the file says.
    db.value("select pgq.unregister_consumer('q', 'c')")
    programs.start("LocalConsumer")
    wait_until(lambda: len(applied()) == 3 and is_done(db))
    programs.stop()
    (programs.folder / "c.tick").write_text("1")
    programs.call("LocalConsumer", "--rewind")
    programs.start("LocalConsumer")
    wait_until(lambda: len(applied()) == 6)
    assert applied() == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("kind", ["RemoteConsumer", "SerialConsumer"])
def test_a_consumer_applies_events_in_another_database(
    db: Connection, programs: Programs, kind: str
) -> None:
    programs.call(kind, "--register")
    send(db, "a", "b")
    programs.start(kind)
    wait_until(lambda: noted(db) == ["a", "b"] and is_done(db))
    programs.stop()
    # The batch was applied, but its end was lost: it comes again and is passed over.
    db.value("select pgq.register_consumer_at('q', 'c', 1)")
    if kind == "SerialConsumer":
        assert db.value("select pgq_ext.get_last_tick('c')") == 2
    else:
        batch = db.value("select pgq.next_batch('q', 'c')")
        db.execute("update pgq_ext.completed_batch set last_batch_id = %s", [batch])
    programs.start(kind)
    wait_until(lambda: is_done(db))
    assert noted(db) == ["a", "b"]


def test_the_status_shows_new_queues_and_idle_workers(db: Connection, programs: Programs) -> None:
    programs.call("CoopConsumer", "--register", subconsumer_name="idle")
    shown = programs.call("status")
    assert "PgQ version: 3.5" in shown
    assert re.search(r"^q +3/7200s +500/3s/60s", shown, re.MULTILINE)
    assert re.search(r"^ +c\.idle +NULL +\d+s +0$", shown, re.MULTILINE)


def test_a_producer_sends_events_one_by_one_and_by_copy(db: Connection, programs: Programs) -> None:
    db.value("select pgq.register_consumer('q', 'c')")
    programs.call("Producer")
    db.tick()
    batch = db.value("select pgq.next_batch('q', 'c')")
    found = db.rows(
        "select ev_id, ev_type, ev_data, ev_extra4 from pgq.get_batch_events(%s)", batch
    )
    assert found == [
        (1, "one", "a", "4"),
        (2, "bulk", "b0", None),
        (3, "bulk", "b1", None),
        (4, "bulk", "b2", None),
    ]
