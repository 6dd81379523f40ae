"""Ticks from elsewhere, ticks on request, and the sequences behind them."""

import pytest

from tests.support.queues.races import race
from tests.support.queues.sql import Connection, refused


def external(
    db: Connection,
    tick_id: int | None,
    event_seq: int | None = 1000,
    at: str | None = "2020-01-01",
) -> int:
    sql = "select pgque.ticker('q', %s::bigint, %s, %s::bigint)"
    return db.value(sql, tick_id, at, event_seq)


@pytest.fixture
def replica(db: Connection) -> Connection:
    db.make_queue(external_ticker="true")
    return db


class TestExternalTicks:
    def test_a_tick_keeps_its_id_time_and_sequence_and_notifies(self, replica: Connection) -> None:
        replica.execute("listen pgque_q")
        assert external(replica, 40, 5000) == 40
        columns = "tick_id, tick_time = '2020-01-01', tick_event_seq"
        newest = replica.rows(f"select {columns} from pgque.tick order by 1 desc limit 1")
        assert newest == [(40, True, 5000)]
        assert [n.payload for n in replica.notifies(timeout=5, stop_after=1)] == ["40"]
        assert replica.send("own ids go on behind it") == [5001]

    def test_events_before_it_are_in_its_batch(self, replica: Connection) -> None:
        replica.send("a")
        external(replica, 40)
        replica.send("b")
        external(replica, 50)
        batch = replica.value("select pgque.next_batch('q', 'c')")
        assert replica.payloads(batch) == ["a"]

    def test_a_request_for_a_tick_of_another_queue_stays(self, replica: Connection) -> None:
        replica.make_queue("other")
        replica.value("select pgque.force_next_tick('other')")
        external(replica, 40)
        assert replica.value("select pgque.ticker('other')") == 2

    def test_a_tick_stays_whichever_half_the_positions_are_on(self, replica: Connection) -> None:
        assert replica.compact_positions() > 0
        replica.send("a")
        external(replica, 40)
        replica.empty_halves()
        assert replica.drain() == ["a"]

    def test_events_of_the_same_transaction_come_later(self, replica: Connection) -> None:
        with replica.transaction():
            replica.send("a")
            external(replica, 40)
            replica.send("b")
        external(replica, 50)
        assert replica.drain() == ["a", "b"]

    def test_ids_and_sequences_only_grow_and_times_are_times(self, replica: Connection) -> None:
        for number in (1, 0, -5, None, 2**52, 2**63 - 1):
            with refused("PQ005", "last tick is 1"):
                external(replica, number)
        external(replica, 2, 1000)
        for sequence in (None, -1, 999, 2**52, 2**63 - 1):
            with refused("PQ005", "event sequence 1000"):
                external(replica, 3, sequence)
        for at in (None, "infinity", "-infinity"):
            with refused("PQ005", "finite"):
                external(replica, 3, at=at)

    def test_own_ticks_and_events_go_on_behind_the_highest(self, replica: Connection) -> None:
        external(replica, 2**52 - 1, 2**52 - 1)
        replica.value("select pgque.set_queue_config('q', 'external_ticker', 'false')")
        replica.make_queue("other")
        replica.publish("a")
        replica.publish("b", queue="other")
        assert (replica.drain(), replica.drain("other")) == (["a"], ["b"])

    def test_a_queue_with_its_own_ticker_or_a_pause_refuses(self, q: Connection) -> None:
        with refused("PQ017", "set_queue_config('q', 'external_ticker', 'true')"):
            external(q, 40)
        q.value("select pgque.set_queue_config('q', 'external_ticker', 'true')")
        q.value("select pgque.set_queue_config('q', 'ticker_paused', 'true')")
        with refused("PQ017", "paused", "ticker_paused"):
            external(q, 40)

    def test_a_snapshot_older_than_the_lock_is_not_stored(self, replica: Connection) -> None:
        replica.execute("begin isolation level repeatable read")
        with refused("PQ013", "repeatable read"):
            external(replica, 40)


class TestExternalTicksAtOnce:
    def test_the_second_has_the_newer_snapshot(self, replica: Connection) -> None:
        def first(db: Connection) -> None:
            external(db, 10)
            db.send("a")

        _, answer = race(replica, first, lambda db: external(db, 20))
        assert answer.result() == 20
        assert replica.drain() == ["a"]
        _, answer = race(replica, lambda db: external(db, 40), lambda db: external(db, 30))
        with refused("PQ005", "last tick is 40"):
            answer.result()

    def test_a_change_to_own_ticks_waits(self, replica: Connection) -> None:
        own = "select pgque.set_queue_config('q', 'external_ticker', 'false')"
        _, answer = race(replica, lambda db: external(db, 20), lambda db: db.value(own))
        answer.result()
        assert replica.tick() == 21


class TestOwnTicks:
    @pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
    def test_a_queue_that_has_none_says_so(self, db: Connection, switch: str) -> None:
        db.make_queue(**{switch: "true"})
        with refused("PQ017", f"set_queue_config('q', '{switch}', 'false')"):
            db.value("select pgque.ticker('q')")
        for call in ("force_tick", "force_next_tick"):
            with refused("PQ017", "ticks not allowed"):
                db.value(f"select pgque.{call}('q')")

    def test_a_forced_tick_comes(self, q: Connection) -> None:
        for tick, call in enumerate(("force_tick", "force_next_tick"), 1):
            assert q.value(f"select pgque.{call}('q')") == tick
            assert (q.value("select pgque.ticker()"), q.last_tick()) == (1, tick + 1)

    def test_the_period_is_what_the_loop_reads(self, db: Connection) -> None:
        for period in (0, 1001):
            with refused("PQ005", "1 to 1000"):
                db.value("select pgque.set_tick_period_ms(%s)", period)
        for period in (1, 1000, 250):
            assert db.value("select pgque.set_tick_period_ms(%s)", period) == period
        assert db.value("select tick_period = '250 ms' from pgque.ticker_pace()")


class TestSequences:
    SEQUENCE = "pgque.event_1_id_seq"
    SET = "select pgque.seq_setval(%s, %s::bigint)"

    def test_ids_are_raised_never_lowered(self, q: Connection) -> None:
        get = "select pgque.seq_getval(%s)"
        assert q.value(get, self.SEQUENCE) == 0
        q.send(*"abcdefghij")
        assert q.value(get, self.SEQUENCE) == 10
        for target in (1, -5, 10, -(2**63)):
            assert q.value(self.SET, self.SEQUENCE, target) == 10
        assert q.send("next") == [11]
        for target in (12, 500, 10_000_000):
            assert q.value(self.SET, self.SEQUENCE, target) == target
            assert q.send("next") == [target + 1]

    def test_ids_given_out_while_a_jump_waits_are_not_given_out_again(self, q: Connection) -> None:
        with q.transaction():
            q.send("a")
            raised = q.blocked(Connection.value, self.SET, self.SEQUENCE, 150_000)
            draw = "select max(nextval(%s)) from generate_series(1, 200000)"
            last = q.value(draw, self.SEQUENCE)
        assert (raised.result(), q.send("next")) == (last, [last + 1])

    def test_only_sequences_of_queues_are_touched(self, q: Connection) -> None:
        q.execute("create sequence public.other")
        for call in ("seq_getval(%s)", "seq_setval(%s, 5)"):
            for name in ("public.other", "pgque.batch_id_seq", "nosuch", None, "a."):
                with refused("PQ005"):
                    q.value(f"select pgque.{call}", name)
        with refused("PQ005", "null"):
            q.value(self.SET, self.SEQUENCE, None)
