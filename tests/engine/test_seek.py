"""Where a consumer starts, and moving it: no event is passed over without being told."""

from typing import Any

import pytest

from tests.support.queues.metrics import consumer_counters
from tests.support.queues.sql import Connection, refused

NOW = "select clock_timestamp()::text"


def register(db: Connection, start_at: str | None, consumer: str = "new") -> int:
    return db.value("select pgque.register_consumer('q', %s, %s)", consumer, start_at)


def seek(
    db: Connection, position: str | None, skip: bool = False, consumer: str = "c"
) -> tuple[Any, ...]:
    """The tick, how many events are passed over, and how many come again."""
    (found,) = db.rows("select * from pgque.seek('q', %s, %s, %s)", consumer, position, skip)
    return found


def time_of(db: Connection, tick_id: int) -> str:
    return db.value("select tick_time::text from pgque.tick where tick_id = %s", tick_id)


@pytest.fixture
def three(db: Connection) -> list[int]:
    """A queue with the events a, b and c, each followed by its tick, and a consumer at the end."""
    db.make_queue(retention="1 day")
    ticks = []
    for text in ("a", "b", "c"):
        db.send(text)
        ticks.append(db.tick())
    assert db.drain() == ["a", "b", "c"]
    return ticks


@pytest.fixture
def fast(db: Connection) -> Connection:
    """A queue that rotates whenever it is asked, with the event a."""
    db.make_queue(rotation_period="1 microsecond")
    db.publish("a")
    return db


class TestStartAt:
    def test_each_position_gets_what_comes_after_it(self, db: Connection, three: list[int]) -> None:
        db.make_queue("elsewhere", consumers=("0",))  # not the one here
        since = db.value(NOW)
        db.send("d")
        assert register(db, "latest", "last") == 1
        assert db.received(consumer="last") == ["d"]
        for number, (start_at, found) in enumerate(
            (
                ("earliest", ["a", "b", "c", "d"]),
                ("2001-01-01 00:00+00", ["a", "b", "c", "d"]),
                ("-infinity ", ["a", "b", "c", "d"]),
                (str(three[1]), ["c", "d"]),
                (since, ["d"]),
            )
        ):
            assert register(db, start_at, str(number)) == 1
            assert db.received(consumer=str(number)) == found

    def test_a_time_leads_to_a_kept_tick_although_the_clock_went_back(self, q: Connection) -> None:
        for text in ("a", "b", "c"):
            q.finish(q.open_batch(text))
            q.rotate()
        q.execute(
            "update pgque.tick_log set tick_time = now() + interval '1 hour'"
            " where tick_id < (select queue_first_tick from pgque.queue)"
        )
        register(q, q.value(NOW))
        q.send("d")
        assert q.received(consumer="new") == ["d"]

    def test_a_registered_consumer_stays_there(self, db: Connection, three: list[int]) -> None:
        assert (register(db, "earliest", "c"), db.drain()) == (0, [])
        with refused("PQ005", "soon"):
            register(db, "soon", "c")

    def test_what_is_gone_is_refused_with_the_oldest_that_is_there(self, q: Connection) -> None:
        before = q.value(NOW)
        for text in ("a", "b", "c"):
            q.send(text)
            q.received()
            q.rotate()
        first = q.value("select queue_first_tick from pgque.queue")
        with refused("PQ005", "does not retain all events", f"tick is {first}", "retention"):
            register(q, before)
        assert register(q, before, "c") == 0  # it stays where it is
        with refused("PQ005", "tick 1", f"Ticks {first} to"):
            register(q, "1")
        register(q, "earliest")
        q.send("d")
        assert q.received(consumer="new")[-1] == "d"

    def test_what_is_no_position_is_refused(self, db: Connection, three: list[int]) -> None:
        for position in (None, "", "soon", "-1", "9" * 20, "2100-01-01", "infinity"):
            named = "null" if position is None else position
            with refused("PQ005", f'"{named}"'):
                register(db, position)
            with refused("PQ005", "is not a position"):
                seek(db, position)
        with refused("PQ005", "tick 999"):
            register(db, "999")


class TestTime:
    def test_of_the_first_tick_leads_there_and_of_an_oldest_that_is_kept_nowhere(
        self, q: Connection
    ) -> None:
        assert seek(q, time_of(q, 1))[0] == 1
        for text in ("a", "b", "c"):
            q.finish(q.open_batch(text))
            q.rotate()
        first = q.value("select queue_first_tick from pgque.queue")
        with refused("PQ005", "does not retain all events", f"tick is {first}"):
            seek(q, time_of(q, first))

    def test_a_ticks_time_gets_what_that_tick_ended(self, db: Connection, three: list[int]) -> None:
        """An event may be committed in the very microsecond of the tick.

        After the clock was set back, the first of both times counts.
        """
        seek(db, time_of(db, three[1]))
        assert db.drain() == ["b", "c"]
        db.execute(
            "update pgque.tick_log set tick_time = tick_time - interval '1 hour'"
            " where tick_id > %s",
            [three[0]],
        )
        seek(db, time_of(db, three[0]))
        assert db.drain() == ["a", "b", "c"]


class TestSeek:
    def test_it_tells_what_it_repeats_or_skips(self, db: Connection, three: list[int]) -> None:
        counted = consumer_counters(db)
        assert seek(db, str(three[0])) == (three[0], 0, 2)
        assert db.drain() == ["b", "c"]
        seek(db, "earliest")
        with refused("PQ025", "skip 2 events", "i_skip => true"):
            seek(db, str(three[1]))
        assert seek(db, str(three[1]), skip=True) == (three[1], 2, 0)
        assert db.drain() == ["c"]
        seek(db, "earliest")
        seek(db, "latest", skip=True)
        with db.transaction(force_rollback=True):
            db.send(*"xyz")
        newest = db.tick()
        assert seek(db, "latest") == (newest, 0, 0), "ids that no event has are nothing"
        acked, *others = consumer_counters(db) or ()
        assert (acked - 3, *others) == counted  # what was read again, and no more

    def test_an_open_batch_is_refused_with_what_to_do(self, q: Connection) -> None:
        batch = q.open_batch("a")
        with refused("PQ016", f"batch {batch}", "register_consumer_at('q', 'c', 1)"):
            seek(q, "earliest")
        q.finish(batch)
        assert seek(q, "earliest")[2] == 1

    def test_a_workers_batch_a_worker_and_a_slot_are_refused(self, bare: Connection) -> None:
        bare.value("select pgque.register_subconsumer('q', 'c', 'w')")
        bare.value("select pgque.subscribe_slot('q', 'parted', 0, 1)")
        for name in ("c.w", "parted#0/1"):
            with refused("PQ015"):
                seek(bare, "earliest", consumer=name)
        with refused("PQ002", "nobody"):
            seek(bare, "earliest", consumer="nobody")
        bare.publish("a")
        batch = bare.value("select pgque.next_batch('q', 'c', 'w')")
        with refused("PQ016", f"batch {batch}"):
            seek(bare, "earliest")
        bare.finish(batch)
        seek(bare, "earliest")
        assert bare.value("select pgque.next_batch('q', 'c', 'w')") > batch

    def test_a_batch_that_ends_now_is_not_repeated(self, q: Connection) -> None:
        batch = q.open_batch("a")
        worker = q.another()
        with worker.transaction():
            worker.finish(batch)
            with refused("PQ016", "has batch"):
                seek(q, "latest")
        # The batch is finished now, so nothing is passed over.
        assert seek(q, "latest")[1:] == (0, 0)

    def test_it_waits_for_rotation_and_sees_the_rest(self, fast: Connection) -> None:
        fast.drain()
        with fast.transaction():
            fast.value("select pgque.maint_rotate_tables_step1('q')")
            answer = fast.blocked(seek, "earliest")
        first = fast.value("select queue_first_tick from pgque.queue")
        assert (answer.result(), fast.next_batch()) == ((first, 0, 0), None)


def test_ticks_are_found_for_who_reads_without_a_consumer(db: Connection, three: list[int]) -> None:
    def found(position: str | None, max_count: int | None) -> tuple[int, int]:
        (ticks,) = db.rows("select * from pgque.retained_ticks('q', %s, %s)", position, max_count)
        return ticks

    first, second, third = three
    start = first - 1
    assert found("earliest", None) == (start, third)
    assert found("latest", None) == (third, third)
    assert found(str(first), 1) == (first, second)
    assert found(time_of(db, second), 1) == (first, second)
    # At least one tick, whose events may be more.
    fourth = db.publish("d", "e", "f")
    assert found(str(third), 2) == (third, fourth)
    assert found(str(second), 2) == (second, third)
    # Without a position, the newest events.
    assert [found(None, count)[0] for count in (1, 3, 4, 100)] == [third, third, second, start]
    assert found(None, None) == (start, fourth)
    with refused("PQ005", "no tick 1000"):
        found("1000", None)
    with refused("PQ005", "is not a position"):
        found("soon", None)
    with refused("PQ001"):
        db.rows("select pgque.retained_ticks('nowhere', 'latest')")


def test_who_reads_the_newest_events_gets_no_tick_that_is_rotated_away(q: Connection) -> None:
    for text in ("a", "b", "c"):
        q.send(text)
        q.received()
        q.rotate()
    first = q.value("select queue_first_tick from pgque.queue")
    assert first > 1
    assert q.value("select from_tick from pgque.retained_ticks('q')") == first


def test_only_a_move_over_events_has_replicated_tables_copied_again(db: Connection) -> None:
    db.make_queue(retention="1 day")
    start = db.rows("select max(tick_id) from pgque.tick")[0][0]
    quiet = [db.tick(), db.tick()]
    db.send("a")
    last = db.tick()
    copied = "select table_name from pgque.replicated_tables('q', 'c')"
    db.value("select pgque.set_replicated('q', 'c', 'public.t', pg_current_snapshot(), 'shape')")
    for tick in (quiet[1], quiet[0]):
        assert seek(db, str(tick)) == (tick, 0, 0)
        assert db.rows(copied) == [("public.t",)]
    seek(db, str(last), skip=True)
    assert db.rows(copied) == []
    db.value("select pgque.set_replicated('q', 'c', 'public.t', pg_current_snapshot(), 'shape')")
    seek(db, str(start))
    assert db.rows(copied) == []


def test_a_move_over_nothing_moves_what_is_known_of_replicas(db: Connection) -> None:
    db.make_queue()
    first, second = db.tick(), db.tick()
    stored = "select stored_tick, empty_to from pgque.stored_ticks('q', 'c')"
    assert db.rows(stored) == []
    seek(db, str(first))
    db.value("select pgque.note_stored('q', 'c', %s)", first)
    seek(db, str(second))
    assert db.rows(stored) == [(first, second)]
    db.send("a")
    seek(db, str(db.tick()), skip=True)
    assert db.rows(stored) == [(first, second)], "what was passed over is missing"
