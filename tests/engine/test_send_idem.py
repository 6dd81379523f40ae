"""Producer idempotency: one event for one key, whatever producers do at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    make_queue,
    next_batch,
    payloads,
    refused,
    rows,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]

SEND = "select * from pgque.send_idem(%s, 't', %s::text, %s)"


def send_idem(
    db: Connection, text: str = "x", key: str = "k", queue: str = "q"
) -> tuple[int, bool]:
    ((event_id, deduped),) = rows(db, SEND, queue, text, key)
    return event_id, deduped


def received(db: Connection, queue: str = "q") -> list[str]:
    tick(db, queue)
    return drain(db, queue)


def expire_keys(db: Connection) -> None:
    db.execute("update pgque.idem set expires_at = now() - interval '1 second'")


def keys(db: Connection) -> list[str]:
    return [key for (key,) in rows(db, "select idem_key from pgque.idem order by 1")]


class TestKeys:
    def test_the_second_event_of_a_key_is_not_sent(self, db: Connection) -> None:
        make_queue(db)
        event_id, deduped = send_idem(db, "first")
        assert not deduped
        assert send_idem(db, "second") == (event_id, True)
        assert received(db) == ["first"]

    def test_the_id_is_that_of_the_event(self, db: Connection) -> None:
        make_queue(db)
        event_id, _ = send_idem(db)
        tick(db)
        assert [row[0] for row in events(db, next_batch(db))] == [event_id]

    def test_different_keys_are_different_events(self, db: Connection) -> None:
        make_queue(db)
        assert [send_idem(db, key, key)[1] for key in ("a", "b", "A")] == [False] * 3
        assert received(db) == ["a", "b", "A"]

    def test_keys_of_one_queue_mean_nothing_in_another(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        assert not send_idem(db)[1]
        assert not send_idem(db, queue="other")[1]

    def test_a_key_counts_within_its_own_transaction(self, db: Connection) -> None:
        make_queue(db)
        with db.transaction():
            event_id, _ = send_idem(db)
            assert send_idem(db) == (event_id, True)

    def test_a_key_of_a_rolled_back_transaction_does_not_count(self, db: Connection) -> None:
        make_queue(db)
        with db.transaction(force_rollback=True):
            send_idem(db, "ghost")
        assert not send_idem(db, "x")[1]
        assert received(db) == ["x"]

    def test_a_key_of_a_rolled_back_savepoint_does_not_count(self, db: Connection) -> None:
        make_queue(db)
        with db.transaction():
            with db.transaction(force_rollback=True):
                send_idem(db, "ghost")
            assert not send_idem(db, "x")[1]
        assert received(db) == ["x"]

    def test_a_key_whose_time_is_over_sends_again(self, db: Connection) -> None:
        make_queue(db)
        first, _ = send_idem(db, "first")
        expire_keys(db)
        second, deduped = send_idem(db, "second")
        assert not deduped
        assert second > first
        assert send_idem(db, "third") == (second, True)
        assert received(db) == ["first", "second"]

    def test_the_time_to_live_is_an_hour_unless_said(self, db: Connection) -> None:
        make_queue(db)
        with db.transaction():
            send_idem(db)
            value(db, "select deduped from pgque.send_idem('q', 't', 'x', 'day', '1 day')")
            hours = "round(extract(epoch from expires_at - now()) / 3600)"
            left = rows(db, f"select idem_key, {hours} from pgque.idem")
            assert dict(left) == {"k": 1, "day": 24}

    def test_a_duplicate_prolongs_no_life(self, db: Connection) -> None:
        make_queue(db)
        send_idem(db)
        until = value(db, "select expires_at from pgque.idem")
        send_idem(db)
        assert value(db, "select expires_at from pgque.idem") == until

    def test_a_duplicate_takes_no_event_id(self, db: Connection) -> None:
        make_queue(db)
        first, _ = send_idem(db)
        send_idem(db)
        assert send_idem(db, key="next") == (first + 1, False)


class TestEvents:
    def test_type_and_payload_arrive_as_they_were(self, db: Connection) -> None:
        make_queue(db)
        value(db, "select deduped from pgque.send_idem('q', 'kind', '{\"a\":1}', 'k')")
        tick(db)
        assert [row[4:] for row in events(db, next_batch(db))] == [
            ("kind", '{"a":1}', None, "k", None, None)
        ]

    def test_jsonb_arrives_in_its_stored_form(self, db: Connection) -> None:
        make_queue(db)
        call = "select deduped from pgque.send_idem('q', 't', '{\"a\":1}'::jsonb, 'k')"
        assert [value(db, call), value(db, call)] == [False, True]
        assert received(db) == ['{"a": 1}']

    @pytest.mark.parametrize("kind", ["text", "jsonb"])
    def test_the_partition_key_is_where_send_puts_it(self, db: Connection, kind: str) -> None:
        make_queue(db)
        value(
            db,
            f"select deduped from pgque.send_idem('q', 't', '1'::{kind}, 'k',"
            " i_partition_key => 'customer 7')",
        )
        value(db, f"select pgque.send('q', 't', '1'::{kind}, 'customer 7')")
        tick(db)
        first, second = [row[4:] for row in events(db, next_batch(db))]
        assert first[:3] == second[:3]
        assert first[2] == "customer 7"

    def test_events_after_a_rotation_are_found(self, db: Connection) -> None:
        make_queue(db, rotation_period="1 microsecond")
        send_idem(db, "a", "a")
        value(db, "select pgque.maint_rotate_tables_step1('q')")
        send_idem(db, "b", "b")
        assert received(db) == ["a", "b"]


class TestConcurrency:
    def test_a_second_producer_waits_and_gets_the_event_of_the_first(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        second = another()
        with db.transaction():
            event_id, _ = send_idem(db, "first")
            waiting = background.submit(send_idem, second, "second")
            wait_until_blocked(another(), second)
        assert waiting.result() == (event_id, True)
        assert received(db) == ["first"]

    def test_a_second_producer_sends_if_the_first_rolls_back(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        second = another()
        with db.transaction(force_rollback=True):
            send_idem(db, "first")
            waiting = background.submit(send_idem, second, "second")
            wait_until_blocked(another(), second)
        assert not waiting.result()[1]
        assert received(db) == ["second"]

    def test_one_of_two_producers_renews_a_key_whose_time_is_over(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        send_idem(db, "old")
        expire_keys(db)
        second = another()
        with db.transaction():
            event_id, _ = send_idem(db, "first")
            waiting = background.submit(send_idem, second, "second")
            wait_until_blocked(another(), second)
        assert waiting.result() == (event_id, True)
        assert received(db) == ["old", "first"]

    def test_a_purge_leaves_a_key_that_a_producer_renews(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        send_idem(db)
        expire_keys(db)
        with db.transaction():
            send_idem(db, "again")
            assert value(another(), "select pgque.maint_idem()") == 0
        assert send_idem(db)[1]

    def test_a_key_that_a_stricter_transaction_cannot_see_is_refused_not_sent_twice(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        strict = another()
        strict.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with refused("40001"), strict.transaction():
            rows(strict, "select 1")
            send_idem(db, "first")
            send_idem(strict, "second")
        assert received(db) == ["first"]

    def test_many_producers_with_the_same_keys_send_each_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)

        def produce(connection: Connection) -> list[tuple[int, bool]]:
            return [send_idem(connection, f"event {n}", f"key {n}") for n in range(100)]

        answers = [background.submit(produce, another()) for _ in range(4)]
        sent = [answer.result() for answer in answers]
        for of_one_key in zip(*sent, strict=True):
            assert len({event_id for event_id, _ in of_one_key}) == 1
            assert sorted(deduped for _, deduped in of_one_key) == [False, True, True, True]
        assert sorted(received(db)) == sorted(f"event {n}" for n in range(100))


class TestPurging:
    def test_keys_go_when_their_time_is_over(self, db: Connection) -> None:
        make_queue(db)
        send_idem(db, key="old")
        expire_keys(db)
        send_idem(db, key="live")
        assert value(db, "select pgque.maint_idem()") == 1
        assert keys(db) == ["live"]

    def test_those_of_one_queue_go_alone(self, db: Connection) -> None:
        make_queue(db)
        make_queue(db, "other")
        send_idem(db, key="mine")
        send_idem(db, key="theirs", queue="other")
        expire_keys(db)
        assert value(db, "select pgque.maint_idem('q')") == 1
        assert keys(db) == ["theirs"]

    def test_maint_purges(self, db: Connection) -> None:
        make_queue(db)
        send_idem(db)
        expire_keys(db)
        value(db, "select pgque.maint()")
        assert keys(db) == []

    def test_a_purge_is_listed_while_a_key_is_over(self, db: Connection) -> None:
        make_queue(db)
        operation = ("pgque.maint_idem", None)
        listed = "select func_name, func_arg from pgque.maint_operations()"
        send_idem(db)
        assert operation not in rows(db, listed)
        expire_keys(db)
        assert operation in rows(db, listed)

    def test_keys_of_a_dropped_queue_go_with_it(self, db: Connection) -> None:
        make_queue(db)
        send_idem(db)
        value(db, "select pgque.drop_queue('q', true)")
        assert keys(db) == []

    def test_dropping_a_queue_takes_the_keys_of_who_still_sends(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, consumers=())
        dropper = another()
        with db.transaction():
            send_idem(db)
            drop = background.submit(value, dropper, "select pgque.drop_queue('q')")
            wait_until_blocked(another(), dropper)
        assert drop.result() == 1
        assert keys(db) == []


class TestBadInput:
    @pytest.mark.parametrize("kind", ["text", "jsonb"])
    @pytest.mark.parametrize("ttl", ["0", "-1 hour", "101 years", None])
    def test_a_senseless_time_to_live_is_refused(
        self, db: Connection, kind: str, ttl: str | None
    ) -> None:
        make_queue(db)
        with refused("PQ005", "idempotency key that lives for", "above 0"):
            rows(db, f"select pgque.send_idem('q', 't', '1'::{kind}, 'k', %s)", ttl)
        assert received(db) == []
        assert keys(db) == []

    @pytest.mark.parametrize(
        ("key", "complaint"), [(None, "null"), ("", "has 0"), ("x" * 1001, "has 1001")]
    )
    def test_a_key_that_is_none_or_too_long_is_refused(
        self, db: Connection, key: str | None, complaint: str
    ) -> None:
        make_queue(db)
        with refused("PQ005", "idempotency key", complaint):
            rows(db, SEND, "q", "x", key)
        assert received(db) == []

    def test_the_longest_key_is_a_key(self, db: Connection) -> None:
        make_queue(db)
        # Random, so that it cannot be stored compressed.
        key = value(
            db, "select left(string_agg(md5(random()::text), ''), 1000) from generate_series(1, 32)"
        )
        assert [send_idem(db, key=key)[1] for _ in range(2)] == [False, True]

    @pytest.mark.parametrize(("queue", "code"), [("nosuch", "PQ001"), (None, "PQ005")])
    def test_a_queue_that_is_not_there_is_named(
        self, db: Connection, queue: str | None, code: str
    ) -> None:
        with refused(code, queue or "null"):
            rows(db, SEND, queue, "x", "k")

    def test_a_closed_queue_takes_nothing_and_no_key(self, db: Connection) -> None:
        make_queue(db, disable_insert="true")
        with refused("PQ006", '"q"'):
            send_idem(db)
        assert keys(db) == []

    def test_malformed_json_is_refused_and_takes_no_key(self, db: Connection) -> None:
        make_queue(db)
        with refused("22P02"):
            rows(db, "select pgque.send_idem('q', 't', %s::jsonb, 'k')", '{"a":')
        assert keys(db) == []

    def test_a_callers_search_path_does_not_reach_the_insert(self, db: Connection) -> None:
        make_queue(db)
        db.execute("create schema evil")
        db.execute("create table evil.idem (like pgque.idem)")
        db.execute("create function evil.nextval(regclass) returns bigint return 666")
        db.execute("set search_path = evil, pg_catalog, pgque")
        event_id, _ = send_idem(db)
        db.execute("reset search_path")
        assert event_id != 666
        tick(db)
        assert payloads(db, next_batch(db)) == ["x"]
