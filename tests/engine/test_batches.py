"""A batch holds what committed between two ticks, each event once; limits choose the ticks."""

from typing import Any

import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused


def test_events_arrive_exactly_once_and_not_before_a_tick(q: Connection) -> None:
    q.send("a", "b")
    assert q.next_batch() is None
    q.tick()
    q.publish("c")
    assert (q.drain(), q.drain()) == (["a", "b", "c"], [])


@pytest.mark.parametrize("rollback", [False, True])
def test_two_sessions_at_once_get_the_same_batch(q: Connection, rollback: bool) -> None:
    q.publish("a")
    batch, answer = race(q, Connection.next_batch, Connection.next_batch, rollback=rollback)
    assert rollback or answer.result() == batch
    assert q.payloads(answer.result()) == ["a"]


def test_of_two_sessions_that_finish_one_batch_the_second_is_refused(q: Connection) -> None:
    batch = q.open_batch("a")
    _, answer = race(q, lambda one: one.finish(batch), lambda two: two.finish(batch))
    with refused("PQ003"):
        answer.result()


def test_a_batch_that_is_finished_is_refused(q: Connection) -> None:
    batch = q.open_batch("a")
    q.finish(batch)
    for call in (
        "finish_batch(%s)",
        "ack(%s)",
        "get_batch_events(%s)",
        "batch_read_plan(%s, 1)",
        "nack_batch(%s, '{1}')",
        "dead_letter_batch(%s, '{1}', 'bad')",
        "event_retry(%s, 1, 0)",
        "get_batch_cursor(%s, 'cur', 1)",
        "batch_retry(%s, 1)",
    ):
        with refused("PQ003", f"batch {batch}"):
            q.execute(f"select * from pgque.{call}".encode(), [batch])


def test_batch_info_says_whose_the_batch_is_and_what_it_spans(q: Connection) -> None:
    columns = "queue_name, consumer_name, prev_tick_id, tick_id, seq_end - seq_start"
    q.value("select pgque.register_consumer('q', 'other')")
    batch = q.open_batch("a", "b")
    found = q.rows(f"select {columns} from pgque.get_batch_info(%s)", batch)
    assert found == [("q", "c", 1, 2, 2)]
    batch = q.next_batch(consumer="other")
    assert q.value("select consumer_name from pgque.get_batch_info(%s)", batch) == "other"


class TestReceive:
    def test_returns_the_whole_batch_past_empty_batches(self, q: Connection) -> None:
        assert q.rows("select * from pgque.receive('q', 'c')") == []
        for _ in range(3):
            q.tick()
        q.publish("a", "b", "c")
        received = q.rows("select payload from pgque.receive('q', 'c', 3)")
        assert received == [("a",), ("b",), ("c",)]
        assert q.rows("select payload from pgque.receive('q', 'c', 2147483647)") == received
        q.value("select pgque.ack(batch_id) from pgque.receive('q', 'c') limit 1")
        assert q.next_batch() is None

    @pytest.mark.parametrize(
        ("function", "others"), [("receive", "'c'"), ("receive_coop", "'shared', 'w'")]
    )
    def test_refuses_a_batch_whose_ack_would_pass_over_messages(
        self, q: Connection, function: str, others: str
    ) -> None:
        q.value("select pgque.register_subconsumer('q', 'shared', 'w')")
        q.publish(*(f"{n}" for n in range(150)))
        for most in ("", ", 149"):
            with refused("54000", f"pgque.{function}: batch exceeds max_return", "about 150"):
                q.rows(f"select * from pgque.{function}('q', {others}{most})")
        assert q.value("select count(*) from pgque.in_flight('q')") == 0
        received = q.rows(f"select batch_id from pgque.{function}('q', {others}, 150)")
        assert len(received) == 150
        q.value("select pgque.ack(%s)", received[0][0])
        assert q.rows(f"select * from pgque.{function}('q', {others})") == []

    def test_refuses_to_return_none(self, q: Connection) -> None:
        with refused("PQ005"):
            q.rows("select * from pgque.receive('q', 'c', 0)")


AGES = "100 min", "95 min", "80 min", "10 min"


def batch_of(db: Connection, lag=None, count=None, interval=None, maximum=None) -> str | None:
    """The events of the next batch within limits, or None; finishes it."""
    call = "pgque.next_batch_custom('q', 'c', %s::interval, %s, %s::interval, %s::integer)"
    batch = db.value(f"select batch_id from {call}", lag, count, interval, maximum)
    if batch is None:
        return None
    found = db.payloads(batch)
    db.finish(batch)
    return "".join(found)


def send_and_tick(db: Connection, *ticks: str) -> None:
    """Each letter is an event."""
    for texts in ticks:
        db.publish(*texts)


LIMITS: list[tuple[Any, ...]] = [
    ("ab", (), {}, ["a"]),
        # The first tick with enough events, or far enough from the start, or either.
        ("abcd", (), {"count": 3}, ["abc"]),
        (["ab"], (), {"count": 3}, [None]),
        ("abc", AGES, {"interval": "20 min"}, ["ab"]),
        ("a", AGES[:2], {"interval": "20 min"}, [None]),
        ("abc", AGES, {"count": 1000, "interval": "20 min"}, ["ab"]),
        # With a maximum, the interval need only be over.
        ("ab", AGES[:3], {"count": 9, "interval": "90 min", "maximum": 9}, ["ab"]),
        ("ab", AGES[:3], {"count": 9, "interval": "90 min"}, [None]),
        ("ab", AGES[:3], {"count": 9, "interval": "2 hours", "maximum": 9}, [None]),
        # No tick that is younger than the lag.
        ("a", ("100 min", "5 min"), {"lag": "10 min"}, [None]),
        ("ab", ("100 min", "50 min", "5 min"), {"lag": "10 min"}, ["a", None]),
        # As much of a backlog as the maximum allows, but a large tick whole.
        ("abcdefg", (), {"maximum": 3}, ["abc", "def", "g", None]),
        (["abc", "d"], (), {"maximum": 2}, ["abc"]),
        (["ab", ""], (), {"maximum": 2}, ["ab", None]),
        ("abcdef", (), {"count": 2, "maximum": 4}, ["abcd", "ef"]),
        ("abc", ("100 min", "50 min", "40 min", "5 min"), {"lag": "10 min", "maximum": 9}, ["ab"]),
]  # fmt: skip


def test_a_batch_ends_where_its_limits_say(q: Connection) -> None:
    for ticks, ages, limits, batches in LIMITS:
        q.make_again()
        send_and_tick(q, *ticks)
        for number, age in enumerate(ages, 1):
            sql = "update pgque.tick_log set tick_time = clock_timestamp() - %s::interval"
            q.execute(
                f"{sql} where tick_queue = %s and tick_id = %s".encode(),
                [age, q.queue_id(), number],
            )
        assert [batch_of(q, **limits) for _ in batches] == batches, (ticks, ages, limits)


def test_limits_do_not_change_a_batch_that_is_open(q: Connection) -> None:
    send_and_tick(q, "a", "b")
    assert q.value("select pgque.next_batch('q', 'c')")
    assert batch_of(q, count=100, maximum=100) == "a"


def test_the_answer_tells_both_ticks_and_no_batch_is_a_row_of_nulls(q: Connection) -> None:
    call = "pgque.next_batch_custom('q', 'c', null, null, null, null::integer)"
    for nothing in (call, "pgque.next_batch_info('q', 'c')"):
        assert q.rows(f"select * from {nothing}") == [(None,) * 7]
    send_and_tick(q, "ab")
    columns = "prev_tick_id, cur_tick_id, cur_tick_event_seq - prev_tick_event_seq"
    assert q.rows(f"select {columns} from {call}") == [(1, 2, 2)]
    info = q.rows("select * from pgque.next_batch_info('q', 'c')")
    assert info == q.rows(f"select * from {call}")


def test_limits_that_no_batch_can_meet_are_refused(q: Connection) -> None:
    for count, maximum in ((None, 0), (5, 4)):
        with refused("PQ005", "min_lag"):
            batch_of(q, count=count, maximum=maximum)


def test_ids_of_events_that_are_inserted_in_bulk_come_in_order(q: Connection) -> None:
    bulk = "select pgque.insert_event_bulk('q', 'kind', %s::text[])"
    assert q.value(bulk, "{}") == []
    ids = q.value(bulk, "{a,b,c}")
    found = [(row[0], row[4], row[5]) for row in q.events(q.open_batch())]
    assert found == list(zip(ids, ["kind"] * 3, "abc", strict=True))


class TestCursor:
    OPEN = "select ev_data from pgque.get_batch_cursor(%s, %s, %s)"
    OPEN_WHERE = "select ev_data from pgque.get_batch_cursor(%s, %s, %s, %s)"

    def test_all_or_none_may_come_at_once(self, q: Connection) -> None:
        batch = q.open_batch("a", "b")
        assert q.rows(self.OPEN, batch, "cur", 10) == [("a",), ("b",)]
        with q.transaction():
            assert q.rows(self.OPEN, batch, "none", 0) == []
            assert len(q.rows("fetch all from none")) == 2

    def test_a_condition_filters(self, q: Connection) -> None:
        batch = q.open_batch("a", "b", "c")
        for where in ("ev_data <> 'a' -- a comment", "'b' <= ev_data"):
            assert q.rows(self.OPEN_WHERE, batch, "cur", 10, where) == [("b",), ("c",)]

    def test_a_condition_is_one_statement_with_the_callers_rights(self, q: Connection) -> None:
        batch = q.open_batch("a")
        injection = "true); drop table pgque.queue; select (1"
        with refused("42P11"):
            q.rows(self.OPEN_WHERE, batch, "cur", 1, injection)
        assert q.value("select count(*) from pgque.queue") == 1
        q.execute("create table public.secret as select 'x' as word")
        q.execute("set role pgque_admin")
        with refused("42501", "secret"):
            q.rows(self.OPEN_WHERE, batch, "cur", 1, "exists (select from public.secret)")

    def test_a_new_name_is_needed(self, q: Connection) -> None:
        batch = q.open_batch("a")
        with q.transaction():
            assert q.rows(self.OPEN_WHERE, batch, "taken", 0, "true") == []
            for sql, name, *where in (
                (self.OPEN, ""),
                (self.OPEN, "taken"),
                (self.OPEN_WHERE, "taken", "true"),
            ):
                with refused("PQ005", "Name a cursor"), q.transaction():
                    q.rows(sql, batch, name, 1, *where)


def test_replicated_tables_are_copied_again_after_a_retry_and_after_a_failover(
    q: Connection,
) -> None:
    """Transaction ids of before a failover may be others of now."""
    batch = q.open_batch("a")
    copied = "select table_name from pgque.replicated_tables('q', 'c')"
    shape = "select pgque.set_replicated('q', 'c', 'public.t', pg_current_snapshot(), 'shape')"
    q.value(shape)
    q.value("select pgque.nack_batch(%s, '{}')", batch)
    assert q.rows(copied) == [("public.t",)], "copied again for no event"
    q.value("select pgque.batch_retry(%s, 0)", batch)
    assert q.rows(copied) == []
    q.value(shape)
    q.value("select pgque.renew_incarnation()")
    assert q.rows(copied) == []


class TestRetryingRaw:
    def retry(self, db: Connection, **changes: object) -> int:
        arguments = {
            "queue": "q",
            "consumer": "c",
            "after": "2020-01-01",
            "id": 4711,
            "time": "2019-01-01",
            "retry": 3,
        } | changes
        call = "%s, %s, %s, %s::bigint, %s, %s::int, 'kind', 'data', '1', '2', '3', '4'"
        return db.value(f"select pgque.event_retry_raw({call})", *arguments.values())

    def test_the_event_comes_as_given(self, db: Connection) -> None:
        db.make_queue(consumers=("c", "other"))
        assert self.retry(db) == 4711
        db.value("select pgque.maint_retry_events()")
        ((number, at, _, *rest),) = db.events(db.open_batch())
        assert (number, at.year, rest) == (4711, 2019, [3, "kind", "data", "1", "2", "3", "4"])
        assert db.drain(consumer="other") == []

    def test_without_an_id_it_is_a_new_event(self, q: Connection) -> None:
        (before,) = q.send("a")
        assert self.retry(q, id=None, time=None, retry=None) == before + 1

    def test_one_scheduled_before_stays(self, q: Connection) -> None:
        self.retry(q, retry=1)
        self.retry(q, retry=2)
        assert q.rows("select ev_retry from pgque.retry_queue") == [(1,)]

    def test_a_negative_count_of_retries_is_refused(self, q: Connection) -> None:
        with refused("PQ005"):
            self.retry(q, retry=-1)
