"""Delayed delivery: send_at, what becomes of its entries, and who may stand in the way."""

import pytest

from tests.support.queues.sql import Connection, refused, warnings_of

FIRST_ENTRY = 2**52
SEND = "select pgque.send_at(%s, 't', %s::text, now() + %s::interval)"
LISTED = "select func_name from pgque.maint_operations() where func_arg is null"


def schedule(db: Connection, *texts: str, at: str = "1 hour", queue: str = "q") -> list[int]:
    """Entries that are due so long from now."""
    return [db.value(SEND, queue, text, at) for text in texts]


def make_due(db: Connection) -> None:
    """Lets the time of all entries come, in the order of their times."""
    db.execute("update pgque.delayed_events set de_deliver_at = de_deliver_at - interval '1 day'")


def deliver(db: Connection) -> int:
    return db.value("select pgque.maint_deliver_delayed()")


def cancel(db: Connection, entry: int | None) -> bool:
    return db.value("select pgque.cancel_scheduled(%s)", entry)


def scheduled(db: Connection, queue: str = "q") -> list[str]:
    return [row[4] for row in db.rows("select * from pgque.list_scheduled(%s)", queue)]


def test_an_event_waits_for_its_time_and_is_delivered_once(q: Connection) -> None:
    assert schedule(q, "x")[0] >= FIRST_ENTRY > q.send("y")[0]
    assert deliver(q) == 0
    assert (q.received(), scheduled(q)) == (["y"], ["x"])
    assert ("pgque.maint_deliver_delayed",) not in q.rows(LISTED)
    make_due(q)
    assert ("pgque.maint_deliver_delayed",) in q.rows(LISTED)
    with q.transaction(force_rollback=True):
        assert deliver(q) == 1
    assert [deliver(q), deliver(q)] == [1, 0]
    assert (q.received(), scheduled(q)) == (["x"], [])


def test_type_and_payload_arrive_as_they_were(q: Connection) -> None:
    forms = {"": '{"a":1}', "::text": '{"a":1}', "::jsonb": '{"a": 1}'}
    for form in forms:
        payload = f"""'{{"a":1}}'{form}"""
        q.value(f"select pgque.send_at('q', 'kind', {payload}, now() + interval '1 hour')")
    make_due(q)
    deliver(q)
    assert [event[4:] for event in q.events(q.open_batch())] == [
        ("kind", stored, None, None, None, None) for stored in forms.values()
    ]


def test_maint_delivers_what_is_due_in_the_order_of_times(q: Connection) -> None:
    for text, at in (("c", "3 h"), ("later", "2 days"), ("a", "1 h"), ("b", "2 h")):
        schedule(q, text, at=at)
    make_due(q)
    q.value("select pgque.maint()")
    assert (q.received(), scheduled(q)) == (["a", "b", "c"], ["later"])


def test_a_hundred_thousand_are_delivered_in_one_call(q: Connection) -> None:
    q.execute(
        "insert into pgque.delayed_events (de_queue_name, de_deliver_at)"
        " select 'q', now() from generate_series(1, 100001)"
    )
    assert [deliver(q), deliver(q), deliver(q)] == [100_000, 1, 0]


def test_a_time_that_is_past_sends_at_once_what_nobody_can_cancel(q: Connection) -> None:
    schedule(q, "stays")
    times = ("now()", "'-infinity'", "'1970-01-01'", "'4713-01-01 BC'")
    sent = [q.value(f"select pgque.send_at('q', 't', 'x', {time})") for time in times]
    assert q.event_ids(q.open_batch()) == sent
    assert [cancel(q, each) for each in sent] == [False] * 4
    assert scheduled(q) == ["stays"]


def test_a_cancel_that_waits_for_a_delivery_finds_nothing(q: Connection) -> None:
    (entry,) = schedule(q, "x")
    make_due(q)
    with q.transaction():
        deliver(q)
        answer = q.blocked(cancel, entry)
    assert answer.result() is False
    assert q.received() == ["x"]


def test_the_list_has_the_next_entry_first_and_no_other_queues(q: Connection) -> None:
    q.make_queue("other")
    schedule(q, "late", at="2 h")
    schedule(q, "soon", at="1 h")
    schedule(q, "foreign", queue="other")
    assert scheduled(q) == ["soon", "late"]
    for limit in (0, 1):
        assert len(q.rows("select * from pgque.list_scheduled('q', %s)", limit)) == limit
    for no_limit in (None, -1):
        with refused("PQ005", "scheduled entries"):
            q.value("select pgque.list_scheduled('q', %s)", no_limit)


def test_what_cannot_be_scheduled_is_refused(q: Connection) -> None:
    for kind in ("text", "jsonb"):
        for time in (None, "infinity"):
            with refused("PQ005", time or "null"):
                q.value(f"select pgque.send_at('q', 't', '1'::{kind}, %s)", time)
    with refused("PQ005", "null"):
        cancel(q, None)
    with refused("22P02"):
        q.value("select pgque.send_at('q', 't', %s::jsonb, now())", '{"a":')
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    for at in ("0", "1 day"):
        with refused("PQ001", '"nosuch"'):
            schedule(q, "x", at=at, queue="nosuch")
        with refused("PQ006", '"q"'):
            schedule(q, "x", at=at)
    assert scheduled(q) == []


class TestOtherQueues:
    @pytest.mark.parametrize(
        ("setting", "delivered"), [("disable_insert", 1), ("ticker_paused", 2)]
    )
    def test_one_shut_holds_up_no_other(self, q: Connection, setting: str, delivered: int) -> None:
        q.make_queue("shut")
        schedule(q, "kept", queue="shut")
        schedule(q, "x")
        make_due(q)
        q.value("select pgque.set_queue_config('shut', %s, 'true')", setting)
        assert deliver(q) == delivered
        assert q.received() == ["x"]
        q.value("select pgque.set_queue_config('shut', %s, 'false')", setting)
        assert deliver(q) == 2 - delivered
        assert q.received("shut") == ["kept"]

    def test_one_that_takes_no_event_stops_no_other(self, q: Connection) -> None:
        q.make_queue("other")
        schedule(q, "a", "b")
        schedule(q, "x", queue="other")
        make_due(q)
        table = q.value("select pgque.current_event_table('q')")
        q.execute(f"alter table {table} add constraint none check (ev_data <> 'b')".encode())
        warnings = warnings_of(q)
        assert deliver(q) == 1
        assert (q.received(), q.received("other")) == ([], ["x"])
        assert scheduled(q) == ["a", "b"]
        (warning,) = warnings
        assert '"q"' in warning and "none" in warning

    def test_entries_of_a_dropped_queue_go_with_it(self, q: Connection) -> None:
        schedule(q, "ghost")
        q.value("select pgque.drop_queue('q', true)")
        q.make_queue()
        make_due(q)
        assert (deliver(q), scheduled(q)) == (0, [])

    def test_their_queue_is_dropped_only_by_force(self, bare: Connection) -> None:
        with bare.transaction():
            schedule(bare, "kept")
            drop = bare.blocked(Connection.value, "select pgque.drop_queue('q')")
        with refused("PQ007", "scheduled events", "cancel"):
            drop.result()
        assert scheduled(bare) == ["kept"]

    def test_scheduling_holds_up_no_rotation(self, db: Connection) -> None:
        db.make_queue(rotation_period="1 microsecond")
        db.value("select pgque.set_snapshot_patience('0')::text")
        with db.transaction():
            schedule(db, "x")
            assert db.another().value("select pgque.maint_rotate_tables_step1('q')") == 1


class TestConcurrency:
    def test_two_maintainers_deliver_each_event_once(self, q: Connection) -> None:
        schedule(q, "a", "b")
        make_due(q)
        second = q.another()
        warnings = warnings_of(second)
        with q.transaction():
            assert deliver(q) == 2
            assert (deliver(second), warnings) == (0, [])
        assert q.received() == ["a", "b"]

    def test_an_open_cancel_holds_up_no_other_event(self, q: Connection) -> None:
        held, _ = schedule(q, "held", "free")
        make_due(q)
        canceller = q.another()
        warnings = warnings_of(q)
        with canceller.transaction(force_rollback=True):
            cancel(canceller, held)
            assert (deliver(q), warnings) == (1, [])
        assert deliver(q) == 1
        assert q.received() == ["free", "held"]
