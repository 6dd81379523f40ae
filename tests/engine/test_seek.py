"""Where a consumer starts, and moving it: no event is passed over without being told."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.halves import catch_up
from tests.support.metrics import consumer_counters
from tests.support.queues import (
    Connection,
    bloat_ticks,
    compact_ticks,
    drain,
    finish,
    last_tick,
    make_queue,
    next_batch,
    open_batch,
    payloads,
    refused,
    rotate,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]
NOW = "select clock_timestamp()::text"


def register(db: Connection, start_at: str | None, consumer: str = "new") -> int:
    done: int = value(db, "select pgque.register_consumer('q', %s, %s)", consumer, start_at)
    return done


def seek(
    db: Connection, position: str | None, skip: bool = False, consumer: str = "c"
) -> tuple[Any, ...]:
    """The tick, how many events are passed over, and how many come again."""
    (found,) = rows(db, "select * from pgque.seek('q', %s, %s, %s)", consumer, position, skip)
    return found


@pytest.fixture
def three(db: Connection) -> list[int]:
    """A queue with the events a, b and c, each followed by its tick, and a consumer at the end."""
    make_queue(db, retention="1 day")
    ticks = []
    for text in ("a", "b", "c"):
        send(db, text)
        ticks.append(tick(db))
    assert drain(db) == ["a", "b", "c"]
    return ticks


class TestStartAt:
    def test_earliest_gets_all_that_is_retained(self, db: Connection, three: list[int]) -> None:
        assert (register(db, "earliest"), drain(db, consumer="new")) == (1, ["a", "b", "c"])

    def test_latest_gets_what_is_not_ticked_yet(self, db: Connection, three: list[int]) -> None:
        send(db, "d")
        register(db, "latest")
        tick(db)
        assert drain(db, consumer="new") == ["d"]

    def test_a_tick_is_where_it_starts(self, db: Connection, three: list[int]) -> None:
        register(db, str(three[1]))
        assert drain(db, consumer="new") == ["c"]

    def test_a_time_gets_what_is_committed_from_then_on(self, db: Connection) -> None:
        make_queue(db, consumers=())
        send(db, "a")
        tick(db)
        since = value(db, NOW)
        send(db, "b")
        tick(db)
        register(db, since)
        assert drain(db, consumer="new") == ["b"]

    def test_a_time_before_the_queue_was_there_gets_all(
        self, db: Connection, three: list[int]
    ) -> None:
        register(db, "2001-01-01 00:00+00")
        assert drain(db, consumer="new") == ["a", "b", "c"]

    def test_a_time_leads_to_a_retained_tick_although_the_clock_went_back(
        self, db: Connection
    ) -> None:
        make_queue(db)
        for text in ("a", "b", "c"):
            finish(db, open_batch(db, text))
            rotate(db)
        db.execute(
            "update pgque.tick_log set tick_time = now() + interval '1 hour'"
            " where tick_id < (select queue_first_tick from pgque.queue)"
        )
        register(db, value(db, NOW))
        send(db, "d")
        tick(db)
        assert drain(db, consumer="new") == ["d"]

    def test_a_registered_consumer_stays_where_it_is(
        self, db: Connection, three: list[int]
    ) -> None:
        assert (register(db, "earliest", "c"), drain(db)) == (0, [])
        with refused("PQ005", "soon"):
            register(db, "soon", "c")

    def test_a_consumer_of_another_queue_is_a_new_one_here(
        self, db: Connection, three: list[int]
    ) -> None:
        make_queue(db, "elsewhere", consumers=("new",))
        assert (register(db, "earliest"), drain(db, consumer="new")) == (1, ["a", "b", "c"])

    def test_what_is_gone_is_refused_with_the_oldest_that_is_there(self, db: Connection) -> None:
        make_queue(db)
        before = value(db, NOW)
        for text in ("a", "b", "c"):
            send(db, text)
            tick(db)
            drain(db)
            rotate(db)
        first = value(db, "select queue_first_tick from pgque.queue")
        with refused("PQ005", "does not retain all events", f"tick is {first}", "retention"):
            register(db, before)
        assert register(db, before, "c") == 0  # it stays where it is
        with refused("PQ005", "tick 1", f"Ticks {first} to"):
            register(db, "1")
        register(db, "earliest")
        send(db, "d")
        tick(db)
        assert drain(db, consumer="new")[-1] == "d"

    @pytest.mark.parametrize(
        "start_at",
        [None, "", "soon", "-1", "99999999999999999999", "2100-01-01", "infinity", "-infinity "],
    )
    def test_what_is_no_position_is_refused(
        self, db: Connection, three: list[int], start_at: str | None
    ) -> None:
        if start_at == "-infinity ":
            assert register(db, start_at) == 1  # before everything, and tick 1 is there
            return
        with refused("PQ005", f'"{start_at}"' if start_at is not None else '"null"'):
            register(db, start_at)

    def test_a_tick_that_is_not_there_yet_is_refused(
        self, db: Connection, three: list[int]
    ) -> None:
        with refused("PQ005", "tick 999"):
            register(db, "999")


class TestTime:
    def test_an_event_sent_before_and_committed_after_comes(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db)
        late = another()
        with late.transaction():
            send(late, "late")
            tick(db)
            since = value(db, NOW)
        send(db, "new")
        tick(db)
        drain(db)
        seek(db, since)
        assert drain(db) == ["late", "new"]

    def test_the_time_of_a_tick_gets_what_that_tick_ended(
        self, db: Connection, three: list[int]
    ) -> None:
        """An event may be committed in the very microsecond of the tick."""
        at = value(db, "select tick_time::text from pgque.tick where tick_id = %s", three[1])
        seek(db, at)
        assert drain(db) == ["b", "c"]

    def test_after_the_clock_was_set_back_the_first_of_both_times_counts(
        self, db: Connection, three: list[int]
    ) -> None:
        db.execute(
            "update pgque.tick_log set tick_time = tick_time - interval '1 hour'"
            " where tick_id > %s",
            [three[0]],
        )
        at = value(db, "select tick_time::text from pgque.tick where tick_id = %s", three[0])
        seek(db, at)
        assert drain(db) == ["a", "b", "c"]

    def test_no_event_committed_after_the_time_is_passed_over_while_many_send(
        self, db: Connection, another: Another
    ) -> None:
        seed = random.randrange(2**31)
        print(f"seed {seed}")
        make_queue(db)
        ended = threading.Event()
        connections = [another() for _ in range(4)]

        def produce(number: int) -> list[tuple[str, Any]]:
            """Each event with a time that is not later than its commit."""
            connection, chance = connections[number], random.Random(seed + number)
            sent = []
            for count in range(60):
                with connection.transaction():
                    send(connection, text := f"{number}/{count}")
                    time.sleep(chance.random() / 200)
                    sent.append((text, value(connection, NOW)))
            return sent

        def ticking(connection: Connection) -> None:
            while not ended.is_set():
                tick(connection)

        with ThreadPoolExecutor() as pool:
            ticker = pool.submit(ticking, connections[3])
            producers = [pool.submit(produce, number) for number in range(3)]
            sent = [each for producer in producers for each in producer.result()]
            ended.set()
            ticker.result()
        tick(db)
        value(db, "select pgque.register_consumer_at('q', 'c', %s)", last_tick(db))
        times = dict(
            rows(db, "select t, t::timestamptz from unnest(%s::text[]) t", [t for _, t in sent])
        )
        for since in random.Random(seed).sample([at for _, at in sent], 20):
            seek(db, since)
            found = set(drain(db))
            assert {text for text, at in sent if times[at] >= times[since]} <= found


class TestSeek:
    def test_back_tells_how_many_events_come_again(self, db: Connection, three: list[int]) -> None:
        assert seek(db, str(three[0])) == (three[0], 0, 2)
        assert drain(db) == ["b", "c"]

    def test_passing_over_events_needs_to_be_said(self, db: Connection, three: list[int]) -> None:
        seek(db, "earliest")
        with refused("PQ025", "pass over 2 events", "i_skip => true"):
            seek(db, str(three[1]))
        assert seek(db, str(three[1]), skip=True) == (three[1], 2, 0)
        assert drain(db) == ["c"]

    def test_passing_over_nothing_needs_no_word(self, db: Connection, three: list[int]) -> None:
        for _ in range(3):
            newest = tick(db)
        assert seek(db, "latest") == (newest, 0, 0)

    def test_ids_that_no_event_has_are_not_counted(self, db: Connection, three: list[int]) -> None:
        with db.transaction(force_rollback=True):
            send(db, *"xyz")
        newest = tick(db)
        assert seek(db, "latest") == (newest, 0, 0)

    def test_an_open_batch_is_refused_with_what_to_do(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "a")
        with refused("PQ016", f"batch {batch}", "register_consumer_at('q', 'c', 1)"):
            seek(db, "earliest")
        finish(db, batch)
        assert seek(db, "earliest")[2] == 1

    def test_the_open_batch_of_a_subconsumer_is_refused_too(self, db: Connection) -> None:
        make_queue(db, consumers=())
        value(db, "select pgque.register_subconsumer('q', 'c', 'w')")
        send(db, "a")
        tick(db)
        batch = value(db, "select pgque.next_batch('q', 'c', 'w')")
        with refused("PQ016", f"batch {batch}"):
            seek(db, "earliest")
        finish(db, batch)
        seek(db, "earliest")
        assert value(db, "select pgque.next_batch('q', 'c', 'w')") > batch

    def test_a_subconsumer_and_a_slot_are_refused(self, db: Connection) -> None:
        make_queue(db, consumers=())
        value(db, "select pgque.register_subconsumer('q', 'c', 'w')")
        value(db, "select pgque.subscribe_slot('q', 'parted', 0, 1)")
        for name in ("c.w", "parted#0/1"):
            with refused("PQ015"):
                seek(db, "earliest", consumer=name)

    def test_what_is_no_position_is_refused(self, db: Connection, three: list[int]) -> None:
        for position in ("soon", "2100-01-01", None):
            with refused("PQ005", "is no position"):
                seek(db, position)

    def test_an_unknown_consumer_is_named(self, db: Connection) -> None:
        make_queue(db)
        with refused("PQ002", "nobody"):
            seek(db, "earliest", consumer="nobody")

    def test_retries_and_dead_letters_stay(self, db: Connection) -> None:
        make_queue(db)
        batch = open_batch(db, "again", "never")
        ids = [row[0] for row in rows(db, "select ev_id from pgque.get_batch_events(%s)", batch)]
        value(db, "select pgque.nack_batch(%s, %s, '0')", batch, ids[:1])
        value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:])
        finish(db, batch)
        assert seek(db, "latest")[1:] == (0, 0)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        assert drain(db) == ["again"]
        assert value(db, "select count(*) from pgque.dead_letter") == 1

    def test_what_was_finished_is_counted_right(self, db: Connection, three: list[int]) -> None:
        before = consumer_counters(db)
        seek(db, "earliest")
        assert consumer_counters(db) == before
        seek(db, "latest", skip=True)
        assert consumer_counters(db) == before

    def test_a_batch_that_is_finished_meanwhile_is_not_repeated_by_mistake(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, retention="1 day")
        batch = open_batch(db, "a")
        worker = another()
        seeker = another()
        with worker.transaction():
            finish(worker, batch)
            answer = background.submit(rows, seeker, "select * from pgque.seek('q', 'c', 'latest')")
            with pytest.raises(Exception, match="has batch"):
                answer.result()
        # The batch is finished now, so nothing is passed over.
        assert seek(db, "latest")[1:] == (0, 0)

    def test_rotation_and_compaction_wait_for_a_seek_that_is_not_committed(
        self, db: Connection, another: Another
    ) -> None:
        make_queue(db, rotation_period="1 microsecond")
        send(db, "a")
        tick(db)
        bloat_ticks(db, 2100)
        catch_up(db, "c")
        seeker = another()
        with seeker.transaction():
            earliest, _, _ = seek(seeker, "earliest")
            held = value(db, "select pgque.maint_rotate_tables_step1('q')"), compact_ticks(db)
        assert (held, earliest, compact_ticks(db)) == ((0, 0), 1, 1)
        assert payloads(db, next_batch(db)) == ["a"]

    def test_a_seek_waits_for_rotation_and_then_sees_what_is_left(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, rotation_period="1 microsecond")
        send(db, "a")
        tick(db)
        drain(db)
        seeker = another()
        with db.transaction():
            value(db, "select pgque.maint_rotate_tables_step1('q')")
            answer = background.submit(
                rows, seeker, "select * from pgque.seek('q', 'c', 'earliest')"
            )
            wait_until_blocked(db, seeker)
        ((position, skipped, repeated),) = answer.result()
        assert position == value(db, "select queue_first_tick from pgque.queue")
        assert (skipped, repeated, next_batch(db)) == (0, 0, None)
