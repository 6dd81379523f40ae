"""Delayed delivery: send_at, what becomes of its entries, and who may stand in the way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    make_queue,
    next_batch,
    queue_id,
    refused,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]

FIRST_ENTRY = 2**52


def schedule(
    db: Connection, *texts: str, at: str = "1 hour", queue: str = "q", type: str = "t"
) -> list[int]:
    """Entries that are due so long from now."""
    sql = "select pgque.send_at(%s, %s, %s::text, now() + %s::interval)"
    return [value(db, sql, queue, type, text, at) for text in texts]


def make_due(db: Connection) -> None:
    """Lets the time of all entries come, in the order of their times."""
    db.execute("update pgque.delayed_events set de_deliver_at = de_deliver_at - interval '1 day'")


def deliver(db: Connection) -> int:
    delivered: int = value(db, "select pgque.maint_deliver_delayed()")
    return delivered


def warnings_of(db: Connection) -> list[str]:
    """What the server will warn this connection of from now on."""
    warnings: list[str] = []
    db.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
    return warnings


def received(db: Connection, queue: str = "q") -> list[str]:
    tick(db, queue)
    return drain(db, queue)


def scheduled(db: Connection, queue: str = "q") -> list[str]:
    return [row[4] for row in rows(db, "select * from pgque.list_scheduled(%s)", queue)]


class TestDelivery:
    def test_an_event_waits_for_its_time(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "later")
        assert deliver(db) == 0
        assert received(db) == []
        assert scheduled(db) == ["later"]

    def test_an_event_whose_time_has_come_is_delivered_once(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "x")
        make_due(db)
        assert [deliver(db), deliver(db)] == [1, 0]
        assert received(db) == ["x"]
        assert scheduled(db) == []

    @pytest.mark.parametrize("payload", ["'{\"a\":1}'", "'{\"a\":1}'::text"])
    def test_type_and_text_arrive_as_they_were(self, db: Connection, payload: str) -> None:
        make_queue(db)
        value(db, f"select pgque.send_at('q', 'kind', {payload}, now() + interval '1 hour')")
        make_due(db)
        deliver(db)
        tick(db)
        assert [row[4:] for row in events(db, next_batch(db))] == [
            ("kind", '{"a":1}', None, None, None, None)
        ]

    def test_jsonb_arrives_in_its_stored_form(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select pgque.send_at('q', 't', '{\"a\":1}'::jsonb, now() + interval '1 hour')")
        make_due(db)
        deliver(db)
        assert received(db) == ['{"a": 1}']

    def test_due_events_come_in_the_order_of_their_times(self, db: Connection) -> None:
        make_queue(db)
        for text, at in (("c", "3 h"), ("a", "1 h"), ("b", "2 h")):
            schedule(db, text, at=at)
        make_due(db)
        deliver(db)
        assert received(db) == ["a", "b", "c"]

    def test_maint_delivers(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "x")
        make_due(db)
        value(db, "select pgque.maint()")
        assert received(db) == ["x"]

    def test_delivery_is_listed_while_something_is_due(self, db: Connection) -> None:
        make_queue(db)
        operation = ("pgque.maint_deliver_delayed", None)
        listed = "select func_name, func_arg from pgque.maint_operations()"
        schedule(db, "x")
        assert operation not in rows(db, listed)
        make_due(db)
        assert operation in rows(db, listed)

    def test_a_hundred_thousand_are_delivered_in_one_call(self, db: Connection) -> None:
        make_queue(db)
        db.execute(
            "insert into pgque.delayed_events (de_queue_name, de_deliver_at)"
            " select 'q', now() from generate_series(1, 100001)"
        )
        assert [deliver(db), deliver(db), deliver(db)] == [100_000, 1, 0]

    def test_a_rolled_back_delivery_leaves_the_entries(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "x")
        make_due(db)
        with db.transaction(force_rollback=True):
            assert deliver(db) == 1
        assert deliver(db) == 1
        assert received(db) == ["x"]

    def test_an_entry_of_a_rolled_back_transaction_is_none(self, db: Connection) -> None:
        make_queue(db)
        with db.transaction(force_rollback=True):
            schedule(db, "ghost")
        make_due(db)
        assert deliver(db) == 0


class TestImmediately:
    @pytest.mark.parametrize("time", ["now()", "'-infinity'", "'1970-01-01'", "'4713-01-01 BC'"])
    def test_a_time_that_is_past_sends_at_once(self, db: Connection, time: str) -> None:
        make_queue(db)
        sent = value(db, f"select pgque.send_at('q', 't', 'x', {time})")
        tick(db)
        assert [row[0] for row in events(db, next_batch(db))] == [sent]

    def test_ids_of_entries_are_none_of_events(self, db: Connection) -> None:
        make_queue(db)
        assert schedule(db, "x")[0] >= FIRST_ENTRY > send(db, "y")[0]

    def test_the_id_of_an_event_cancels_no_entry(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "stays")
        sent = value(db, "select pgque.send_at('q', 't', 'x', now())")
        assert value(db, "select pgque.cancel_scheduled(%s)", sent) is False
        assert scheduled(db) == ["stays"]


class TestCancelling:
    def test_a_cancelled_event_is_never_delivered(self, db: Connection) -> None:
        make_queue(db)
        kept, cancelled = schedule(db, "kept", "cancelled")
        assert value(db, "select pgque.cancel_scheduled(%s)", cancelled) is True
        make_due(db)
        deliver(db)
        assert received(db) == ["kept"]
        assert kept != cancelled

    def test_a_second_cancel_finds_nothing(self, db: Connection) -> None:
        make_queue(db)
        (entry,) = schedule(db, "x")
        value(db, "select pgque.cancel_scheduled(%s)", entry)
        assert value(db, "select pgque.cancel_scheduled(%s)", entry) is False

    def test_a_cancel_that_waits_for_a_delivery_finds_nothing(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        (entry,) = schedule(db, "x")
        make_due(db)
        canceller = another()
        with db.transaction():
            deliver(db)
            cancel = background.submit(value, canceller, "select pgque.cancel_scheduled(%s)", entry)
            wait_until_blocked(another(), canceller)
        assert cancel.result() is False
        assert received(db) == ["x"]

    def test_a_null_id_is_refused(self, db: Connection) -> None:
        with refused("PQ005", "null"):
            value(db, "select pgque.cancel_scheduled(null)")


class TestListing:
    def test_the_next_comes_first_and_other_queues_are_left_out(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        schedule(db, "late", at="2 h")
        schedule(db, "soon", at="1 h")
        schedule(db, "foreign", queue="other")
        assert scheduled(db) == ["soon", "late"]

    def test_no_more_than_asked_for(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "a", "b", "c")
        assert len(rows(db, "select * from pgque.list_scheduled('q', 2)")) == 2

    @pytest.mark.parametrize("limit", [None, -1])
    def test_a_senseless_limit_is_refused(self, db: Connection, limit: int | None) -> None:
        make_queue(db)
        with refused("PQ005", "scheduled entries"):
            value(db, "select pgque.list_scheduled('q', %s)", limit)

    def test_an_unknown_queue_is_named(self, db: Connection) -> None:
        with refused("PQ001", '"nosuch"'):
            value(db, "select pgque.list_scheduled('nosuch')")


class TestBadInput:
    @pytest.mark.parametrize("time", [None, "infinity"])
    @pytest.mark.parametrize("kind", ["text", "jsonb"])
    def test_a_time_that_never_comes_is_refused(
        self, db: Connection, time: str | None, kind: str
    ) -> None:
        make_queue(db)
        with refused("PQ005", '"q"', time or "null"):
            value(db, f"select pgque.send_at('q', 't', '1'::{kind}, %s)", time)
        assert scheduled(db) == []

    @pytest.mark.parametrize("time", ["now()", "now() + interval '1 day'"])
    def test_an_unknown_queue_is_named(self, db: Connection, time: str) -> None:
        with refused("PQ001", '"nosuch"'):
            value(db, f"select pgque.send_at('nosuch', 't', 'x', {time})")

    @pytest.mark.parametrize("time", ["now()", "now() + interval '1 day'"])
    def test_a_closed_queue_takes_nothing(self, db: Connection, time: str) -> None:
        make_queue(db, disable_insert="true")
        with refused("PQ006", '"q"'):
            value(db, f"select pgque.send_at('q', 't', 'x', {time})")

    def test_malformed_json_is_refused(self, db: Connection) -> None:
        make_queue(db)
        with refused("22P02"):
            value(db, "select pgque.send_at('q', 't', %s::jsonb, now())", '{"a":')

    def test_a_payload_of_200_megabytes_is_delivered(self, db: Connection) -> None:
        make_queue(db)
        value(
            db,
            "select pgque.send_at('q', 't', repeat('x', 200000000), now() + interval '1 hour')",
        )
        make_due(db)
        deliver(db)
        assert value(db, f"select length(ev_data) from pgque.event_{queue_id(db)}") == 200_000_000


class TestOtherQueues:
    def test_a_closed_queue_keeps_its_events_until_it_opens(self, db: Connection) -> None:
        make_queue(db, "shut")
        make_queue(db)
        schedule(db, "kept", queue="shut")
        schedule(db, "x")
        make_due(db)
        value(db, "select pgque.set_queue_config('shut', 'disable_insert', 'true')")
        assert deliver(db) == 1
        assert received(db) == ["x"]
        value(db, "select pgque.set_queue_config('shut', 'disable_insert', 'false')")
        assert deliver(db) == 1
        assert received(db, "shut") == ["kept"]

    def test_a_paused_queue_gets_its_events_and_passes_them_on_later(self, db: Connection) -> None:
        make_queue(db, "halted")
        make_queue(db)
        schedule(db, "kept", queue="halted")
        schedule(db, "x")
        make_due(db)
        value(db, "select pgque.pause_queue('halted')")
        assert deliver(db) == 2
        assert received(db) == ["x"]
        value(db, "select pgque.resume_queue('halted')")
        assert received(db, "halted") == ["kept"]

    def test_an_entry_that_cannot_be_sent_stops_no_other(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        bad = schedule(db, "a", "bad", "b")[1]
        schedule(db, "x", queue="other")
        make_due(db)
        table = value(db, "select pgque.current_event_table('q')")
        db.execute(f"alter table {table} add constraint no_bad check (ev_data <> 'bad')".encode())
        warnings = warnings_of(db)
        assert deliver(db) == 3
        assert received(db) == ["a", "b"]
        assert received(db, "other") == ["x"]
        assert scheduled(db) == ["bad"]
        assert len(warnings) == 1
        assert str(bad) in warnings[0]
        assert '"q"' in warnings[0]

    def test_entries_of_a_dropped_queue_go_with_it(self, db: Connection) -> None:
        make_queue(db)
        schedule(db, "ghost")
        value(db, "select pgque.drop_queue('q', true)")
        make_queue(db)
        make_due(db)
        assert deliver(db) == 0
        assert scheduled(db) == []

    def test_dropping_a_queue_waits_for_who_schedules_and_takes_his_entries(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, consumers=())
        dropper = another()
        with db.transaction():
            schedule(db, "ghost")
            drop = background.submit(value, dropper, "select pgque.drop_queue('q')")
            wait_until_blocked(another(), dropper)
        assert drop.result() == 1
        assert rows(db, "select * from pgque.delayed_events") == []

    def test_scheduling_in_a_long_transaction_holds_up_no_rotation(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, rotation_period="1 microsecond")
        value(db, "select pgque.set_snapshot_patience('0')::text")
        with db.transaction():
            schedule(db, "x")
            assert value(another(), "select pgque.maint_rotate_tables_step1('q')") == 1


class TestConcurrency:
    def test_two_maintainers_at_once_deliver_each_event_once(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        schedule(db, "a", "b")
        make_due(db)
        second = another()
        warnings = warnings_of(second)
        with db.transaction():
            assert deliver(db) == 2
            assert (deliver(second), warnings) == (0, [])
        assert received(db) == ["a", "b"]

    def test_a_cancel_that_is_not_committed_holds_up_no_other_event(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        held, _ = schedule(db, "held", "free")
        make_due(db)
        canceller = another()
        warnings = warnings_of(db)
        with canceller.transaction(force_rollback=True):
            value(canceller, "select pgque.cancel_scheduled(%s)", held)
            assert (deliver(db), warnings) == (1, [])
        assert deliver(db) == 1
        assert received(db) == ["free", "held"]

    def test_many_producers_and_maintainers_lose_and_repeat_nothing(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)

        def produce(connection: Connection, name: str) -> None:
            for number in range(60):
                schedule(connection, f"{name} {number}", at=f"{number % 3 * 10} ms")

        def maintain(connection: Connection) -> None:
            for _ in range(60):
                deliver(connection)

        tasks = [background.submit(produce, another(), name) for name in "ab"]
        tasks += [background.submit(maintain, another()) for _ in range(2)]
        for task in tasks:
            task.result()
        make_due(db)
        deliver(db)
        expected = sorted(f"{name} {number}" for name in "ab" for number in range(60))
        assert sorted(received(db)) == expected
