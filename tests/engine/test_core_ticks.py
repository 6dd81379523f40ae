"""Ticks from elsewhere, ticks on request, the search for a tick, and the sequences behind them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest

from tests.support.queues import (
    Connection,
    drain,
    last_tick,
    make_queue,
    payloads,
    queue_id,
    refused,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


def external(
    db: Connection,
    tick_id: int | None,
    event_seq: int | None = 1000,
    at: str | None = "2020-01-01",
    queue: str | None = "q",
) -> int:
    done: int = value(
        db, "select pgque.ticker(%s, %s::bigint, %s, %s::bigint)", queue, tick_id, at, event_seq
    )
    return done


@pytest.fixture
def replica(db: Connection) -> Connection:
    make_queue(db, external_ticker="true")
    return db


class TestExternalTicks:
    def test_a_tick_keeps_its_id_time_and_sequence(self, replica: Connection) -> None:
        assert external(replica, 40, 2000) == 40
        assert rows(
            replica,
            "select tick_id, tick_time = '2020-01-01', tick_event_seq from pgque.tick"
            " order by tick_id desc limit 1",
        ) == [(40, True, 2000)]

    def test_events_before_it_are_in_its_batch(self, replica: Connection) -> None:
        send(replica, "a")
        external(replica, 40)
        send(replica, "b")
        external(replica, 50)
        batch = value(replica, "select pgque.next_batch('q', 'c')")
        assert payloads(replica, batch) == ["a"]

    def test_consumers_follow_ids_with_gaps(self, replica: Connection) -> None:
        for number in (7, 100, 1000):
            send(replica, str(number))
            external(replica, number, number * 100)
        assert drain(replica) == ["7", "100", "1000"]

    def test_events_of_the_same_transaction_come_later(self, replica: Connection) -> None:
        with replica.transaction():
            send(replica, "a")
            external(replica, 40)
            send(replica, "b")
        external(replica, 50)
        assert drain(replica) == ["a", "b"]

    def test_own_event_ids_go_on_behind_it(self, replica: Connection) -> None:
        external(replica, 40, 5000)
        assert send(replica, "a") == [5001]

    def test_it_notifies(self, replica: Connection) -> None:
        replica.execute("listen pgque_q")
        external(replica, 40)
        assert [n.payload for n in replica.notifies(timeout=5, stop_after=1)] == ["40"]

    @pytest.mark.parametrize("number", [1, 0, -5, None])
    def test_ids_only_grow(self, replica: Connection, number: int | None) -> None:
        with refused("PQ005", "last tick is 1"):
            external(replica, number)

    @pytest.mark.parametrize("sequence", [None, -1, 999])
    def test_sequences_only_grow(self, replica: Connection, sequence: int | None) -> None:
        external(replica, 2, 1000)
        with refused("PQ005", "event sequence 1000"):
            external(replica, 3, sequence)

    @pytest.mark.parametrize("at", [None, "infinity", "-infinity"])
    def test_the_time_is_a_time(self, replica: Connection, at: str | None) -> None:
        with refused("PQ005", "finite"):
            external(replica, 2, at=at)

    def test_a_queue_with_its_own_ticker_refuses(self, db: Connection) -> None:
        make_queue(db)
        with refused("PQ017", "external_ticker"):
            external(db, 40)

    def test_a_paused_queue_refuses(self, replica: Connection) -> None:
        value(replica, "select pgque.set_queue_config('q', 'ticker_paused', 'true')")
        with refused("PQ017", "paused", "ticker_paused"):
            external(replica, 40)

    @pytest.mark.parametrize(("queue", "code"), [("nosuch", "PQ001"), (None, "PQ005")])
    def test_a_queue_is_needed(self, db: Connection, queue: str | None, code: str) -> None:
        with refused(code):
            external(db, 40, queue=queue)

    @pytest.mark.parametrize("level", ["repeatable read", "serializable"])
    def test_a_snapshot_older_than_the_lock_is_not_stored(
        self, replica: Connection, level: str
    ) -> None:
        replica.execute(f"begin isolation level {level}".encode())
        with refused("PQ013", level):
            external(replica, 40)


class TestExternalTicksAtOnce:
    def test_the_second_has_the_newer_snapshot(
        self, replica: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        second = another()
        with replica.transaction():
            external(replica, 10)
            answer = background.submit(external, second, 20)
            wait_until_blocked(another(), second)
            send(replica, "a")
        assert answer.result() == 20
        assert drain(replica) == ["a"]

    def test_the_second_with_a_lower_id_is_refused(
        self, replica: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        second = another()
        with replica.transaction():
            external(replica, 20)
            answer = background.submit(external, second, 10)
            wait_until_blocked(another(), second)
        with refused("PQ005", "last tick is 20"):
            answer.result()

    def test_a_change_to_own_ticks_waits(
        self, replica: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        second = another()
        with replica.transaction():
            external(replica, 20)
            answer = background.submit(
                value, second, "select pgque.set_queue_config('q', 'external_ticker', 'false')"
            )
            wait_until_blocked(another(), second)
        answer.result()
        assert tick(replica) == 21

    def test_snapshots_grow_with_ids_whoever_ticks(
        self, replica: Connection, another: Another
    ) -> None:
        sessions = [another() for _ in range(4)]
        start = Barrier(len(sessions))

        def race(worker: int) -> None:
            start.wait()
            for step in range(60):
                send(sessions[worker], f"{worker}-{step}")
                try:
                    external(sessions[worker], 2 + step * 10 + worker, 1000 + step)
                except psycopg.Error as error:
                    assert error.sqlstate == "PQ005", error

        with ThreadPoolExecutor(len(sessions)) as pool:
            list(pool.map(race, range(len(sessions))))
        external(replica, 10_000, 10_000)
        consumed = drain(replica)
        assert sorted(consumed) == sorted(f"{w}-{s}" for w in range(4) for s in range(60))
        assert (
            rows(
                replica,
                "select tick_id from (select tick_id, pg_snapshot_xmax(tick_snapshot) as xmax,"
                " lag(pg_snapshot_xmax(tick_snapshot)) over (order by tick_id) as before"
                " from pgque.tick) t where xmax < before",
            )
            == []
        )


class TestOwnTicks:
    @pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
    def test_a_queue_that_has_none_says_so(self, db: Connection, switch: str) -> None:
        make_queue(db, **{switch: "true"})
        with refused("PQ017", "set_queue_config"):
            value(db, "select pgque.ticker('q')")

    @pytest.mark.parametrize("call", ["force_tick", "force_next_tick"])
    def test_a_forced_tick_comes(self, db: Connection, call: str) -> None:
        make_queue(db)
        assert value(db, f"select pgque.{call}('q')") == 1
        assert (value(db, "select pgque.ticker()"), last_tick(db)) == (1, 2)

    @pytest.mark.parametrize(("queue", "code"), [("nosuch", "PQ001"), (None, "PQ005")])
    def test_no_tick_is_forced_without_a_queue(
        self, db: Connection, queue: str | None, code: str
    ) -> None:
        with refused(code):
            value(db, "select pgque.force_tick(%s)", queue)

    @pytest.mark.parametrize("period", [0, 1001, -1, None])
    def test_an_impossible_period_is_refused(self, db: Connection, period: int | None) -> None:
        with refused("PQ005", "1 to 1000"):
            value(db, "select pgque.set_tick_period_ms(%s)", period)

    def test_the_period_is_what_the_loop_reads(self, db: Connection) -> None:
        assert value(db, "select pgque.set_tick_period_ms(250)") == 250
        assert value(db, "select tick_period = '250 ms' from pgque.ticker_pace()")


class TestFindingATick:
    FIND = (
        "select next_tick_id from pgque.find_tick_helper(%s::int, %s::bigint, %s, %s::bigint,"
        " %s::bigint, %s)"
    )

    def find(self, db: Connection, count: int | None, interval: str | None) -> int | None:
        found: int | None = value(db, self.FIND, queue_id(db), 1, "2020-01-01", 0, count, interval)
        return found

    @pytest.fixture
    def queue(self, db: Connection) -> Connection:
        make_queue(db)
        for text in "abcd":
            send(db, text)
            tick(db)
        db.execute(
            "update pgque.tick_log"
            " set tick_time = timestamptz '2020-01-01' + tick_id * '1 hour'::interval"
        )
        return db

    @pytest.mark.parametrize(
        ("count", "interval", "expected"),
        [
            (None, None, 2),
            (3, None, 4),
            (100, None, None),
            (None, "2 hours", 2),
            (None, "4 hours", 4),
            (None, "1 day", None),
            (100, "4 hours", 4),
            (2, "1 day", 3),
        ],
    )
    def test_either_enough_events_or_enough_time_will_do(
        self, queue: Connection, count: int | None, interval: str | None, expected: int | None
    ) -> None:
        assert self.find(queue, count, interval) == expected

    @pytest.mark.parametrize(
        "arguments",
        [
            (None, 1, "2020-01-01", 0, None, None),
            (1, None, "2020-01-01", 0, None, None),
            (1, 1, None, 0, None, "1 hour"),
            (1, 1, "2020-01-01", None, 1, None),
            (1, 1, "2020-01-01", 0, -1, None),
            (1, 1, "2020-01-01", 0, 2**31, None),
            (1, 1, "2020-01-01", 0, None, "-1 hour"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, db: Connection, arguments: tuple[object, ...]
    ) -> None:
        with refused("PQ005", "pgque.tick"):
            rows(db, self.FIND, *arguments)


class TestSequences:
    SEQUENCE = "pgque.event_1_id_seq"

    def test_the_last_id_is_read(self, db: Connection) -> None:
        make_queue(db)
        before = value(db, "select pgque.seq_getval(%s)", self.SEQUENCE)
        send(db, "a", "b")
        assert (before, value(db, "select pgque.seq_getval(%s)", self.SEQUENCE)) == (0, 2)

    @pytest.mark.parametrize(
        ("target", "expected"),
        [(1, 10), (-5, 10), (10, 10), (500, 500), (10_000_000, 10_000_000), (-(2**63), 10)],
    )
    def test_ids_are_raised_never_lowered(self, db: Connection, target: int, expected: int) -> None:
        make_queue(db)
        send(db, *"abcdefghij")
        assert (
            value(db, "select pgque.seq_setval(%s, %s::bigint)", self.SEQUENCE, target) == expected
        )
        assert send(db, "next") == [expected + 1]

    def test_raising_meets_producers(self, db: Connection, another: Another) -> None:
        make_queue(db)
        sessions = [another() for _ in range(3)]

        def produce(number: int) -> list[int]:
            if number == 0:
                for target in range(1000, 2_000_000, 150_000):
                    value(sessions[0], "select pgque.seq_setval(%s, %s)", self.SEQUENCE, target)
                return []
            return [send(sessions[number], "x")[0] for _ in range(300)]

        with ThreadPoolExecutor(3) as pool:
            ids = [each for found in pool.map(produce, range(3)) for each in found]
        assert len(set(ids)) == 600

    @pytest.mark.parametrize("call", ["seq_getval(%s)", "seq_setval(%s, 5)"])
    @pytest.mark.parametrize("name", ["public.other", "pgque.batch_id_seq", "nosuch", None, "a."])
    def test_only_sequences_of_queues_are_touched(
        self, db: Connection, call: str, name: str | None
    ) -> None:
        make_queue(db)
        db.execute("create sequence public.other")
        with refused("PQ005"):
            value(db, f"select pgque.{call}", name)

    def test_a_value_is_needed(self, db: Connection) -> None:
        make_queue(db)
        with refused("PQ005", "null"):
            value(db, "select pgque.seq_setval(%s, null)", self.SEQUENCE)

    @pytest.mark.parametrize(
        ("name", "quoted"),
        [
            ("a.b", "a.b"),
            ("b", "public.b"),
            ("A.b c", '"A"."b c"'),
            ("a.b.c", 'a."b.c"'),
            ('x".y;drop', '"x"""."y;drop"'),
        ],
    )
    def test_names_are_quoted(self, db: Connection, name: str, quoted: str) -> None:
        assert value(db, "select pgque.quote_fqname(%s)", name) == quoted

    @pytest.mark.parametrize("name", ["", ".", "a.", ".b", None])
    def test_half_a_name_is_refused(self, db: Connection, name: str | None) -> None:
        with refused("PQ005", "names no object"):
            value(db, "select pgque.quote_fqname(%s)", name)
