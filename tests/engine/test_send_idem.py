"""Producer idempotency: one event for one key, whatever producers do at once."""

import pytest

from tests.support.queues.sql import Connection, refused

SEND = "select * from pgque.send_idem(%s, 't', %s::text, %s)"
LISTED = "select func_name from pgque.maint_operations() where func_arg is null"


def send_idem(
    db: Connection, text: str = "x", key: str = "k", queue: str = "q"
) -> tuple[int, bool]:
    ((event_id, deduped),) = db.rows(SEND, queue, text, key)
    return event_id, deduped


def expire_keys(db: Connection) -> None:
    db.execute("update pgque.idem set expires_at = now() - interval '1 second'")


def keys(db: Connection) -> list[str]:
    return [key for (key,) in db.rows("select idem_key from pgque.idem order by 1")]


class TestKeys:
    def test_the_second_event_of_a_key_is_not_sent_and_takes_no_id(self, q: Connection) -> None:
        event_id, deduped = send_idem(q, "first")
        until = q.value("select expires_at from pgque.idem")
        assert not deduped
        assert send_idem(q, "second") == (event_id, True)
        assert q.value("select expires_at from pgque.idem") == until
        assert send_idem(q, key="next") == (event_id + 1, False)
        assert q.event_ids(q.open_batch()) == [event_id, event_id + 1]

    def test_different_keys_and_queues_are_different_events(self, q: Connection) -> None:
        q.make_queue("other")
        assert [send_idem(q, key, key)[1] for key in ("a", "b", "A")] == [False] * 3
        assert not send_idem(q, key="a", queue="other")[1]
        assert q.received() == ["a", "b", "A"]

    def test_a_key_counts_within_its_transaction_and_goes_with_it(self, q: Connection) -> None:
        with q.transaction(force_rollback=True):
            event_id, _ = send_idem(q, "ghost")
            assert send_idem(q, "ghost") == (event_id, True)
        with q.transaction():
            with q.transaction(force_rollback=True):
                send_idem(q, "ghost")
            assert not send_idem(q, "x")[1]
        assert q.received() == ["x"]

    def test_a_key_whose_time_is_over_sends_again(self, q: Connection) -> None:
        first, _ = send_idem(q, "first")
        expire_keys(q)
        second, deduped = send_idem(q, "second")
        assert not deduped
        assert second > first
        assert send_idem(q, "third") == (second, True)
        assert q.received() == ["first", "second"]

    def test_a_key_whose_time_ends_within_a_transaction_sends_again(self, q: Connection) -> None:
        with q.transaction():
            q.execute("set local statement_timeout = '30s'")
            send_idem(q, "first")
            q.execute("update pgque.idem set expires_at = clock_timestamp()")
            assert not send_idem(q, "second")[1]
        assert q.received() == ["first", "second"]

    def test_the_time_to_live_is_an_hour_unless_said(self, q: Connection) -> None:
        with q.transaction():
            send_idem(q)
            q.value("select deduped from pgque.send_idem('q', 't', 'x', 'day', '1 day')")
            hours = "round(extract(epoch from expires_at - now()) / 3600)"
            left = q.rows(f"select idem_key, {hours} from pgque.idem")
        assert dict(left) == {"k": 1, "day": 24}


class TestEvents:
    def test_fields_are_where_send_has_them(self, q: Connection) -> None:
        forms = {"'{\"a\":1}'": '{"a":1}', "'{\"a\":1}'::jsonb": '{"a": 1}'}
        for payload, stored in forms.items():
            call = f"select deduped from pgque.send_idem('q', 'kind', {payload}, 'k')"
            assert [q.value(call), q.value(call)] == [False, True]
            keyed = f"'q', 'kind', {payload}, 'k 2', i_partition_key => 'customer 7'"
            q.value(f"select deduped from pgque.send_idem({keyed})")
            q.value(f"select pgque.send('q', 'kind', {payload}, 'customer 7')")
            batch = q.open_batch()
            assert [row[4:] for row in q.events(batch)] == [
                ("kind", stored, None, "k", None, None),
                ("kind", stored, "customer 7", "k 2", None, None),
                ("kind", stored, "customer 7", None, None, None),
            ]
            q.finish(batch)
            expire_keys(q)


class TestConcurrency:
    @pytest.mark.parametrize("is_renewed", [False, True])
    def test_a_second_producer_waits_and_gets_the_event_of_the_first(
        self, q: Connection, is_renewed: bool
    ) -> None:
        if is_renewed:
            send_idem(q, "old")
            expire_keys(q)
        with q.transaction():
            event_id, _ = send_idem(q, "first")
            waiting = q.blocked(send_idem, "second")
        assert waiting.result() == (event_id, True)
        assert q.received() == ["old", "first"][not is_renewed :]

    def test_a_second_sends_if_the_first_fails(self, q: Connection) -> None:
        with q.transaction(force_rollback=True):
            send_idem(q, "first")
            waiting = q.blocked(send_idem, "second")
        assert not waiting.result()[1]
        assert q.received() == ["second"]

    def test_a_purge_leaves_a_key_that_is_renewed(self, q: Connection) -> None:
        send_idem(q)
        expire_keys(q)
        with q.transaction():
            send_idem(q, "again")
            assert q.another().value("select pgque.maint_idem()") == 0
        assert send_idem(q)[1]

    def test_a_key_that_is_out_of_sight_is_refused(self, q: Connection) -> None:
        strict = q.another().hold_snapshot()
        send_idem(q, "first")
        with refused("40001"):
            send_idem(strict, "second")
        strict.rollback()
        assert q.received() == ["first"]


class TestPurging:
    def test_keys_go_when_their_time_is_over_or_those_of_one_queue(self, q: Connection) -> None:
        q.make_queue("other")
        send_idem(q, key="mine")
        send_idem(q, key="theirs", queue="other")
        assert ("pgque.maint_idem",) not in q.rows(LISTED)
        expire_keys(q)
        assert ("pgque.maint_idem",) in q.rows(LISTED)
        send_idem(q, key="live")
        assert q.value("select pgque.maint_idem('q')") == 1
        assert keys(q) == ["live", "theirs"]
        assert q.value("select pgque.maint_idem()") == 1
        assert keys(q) == ["live"]
        expire_keys(q)
        q.value("select pgque.maint()")
        assert keys(q) == []

    def test_dropping_a_queue_takes_all_its_keys(self, bare: Connection) -> None:
        send_idem(bare, key="old")
        with bare.transaction():
            send_idem(bare)
            drop = bare.blocked(Connection.value, "select pgque.drop_queue('q')")
        assert drop.result() == 1
        assert keys(bare) == []


def test_what_makes_no_sense_is_refused_and_takes_no_key(q: Connection) -> None:
    for kind in ("text", "jsonb"):
        for ttl in ("0", "-1 hour", "101 years", None):
            with refused("PQ005", "idempotency key cannot live for", "above 0"):
                q.rows(f"select pgque.send_idem('q', 't', '1'::{kind}, 'k', %s)", ttl)
    for key, complaint in ((None, "null"), ("", "has 0"), ("x" * 1001, "has 1001")):
        with refused("PQ005", "idempotency key", complaint):
            q.rows(SEND, "q", "x", key)
    for queue, code in (("nosuch", "PQ001"), (None, "PQ005")):
        with refused(code, queue or "null"):
            q.rows(SEND, queue, "x", "k")
    with refused("22P02"):
        q.rows("select pgque.send_idem('q', 't', %s::jsonb, 'k')", '{"a":')
    assert q.received() == []
    q.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006", '"q"'):
        send_idem(q)
    assert keys(q) == []


def test_the_longest_key_is_a_key(q: Connection) -> None:
    # Random, so that it cannot be stored compressed.
    key = q.value(
        "select left(string_agg(md5(random()::text), ''), 1000) from generate_series(1, 32)"
    )
    assert [send_idem(q, key=key)[1] for _ in range(2)] == [False, True]
