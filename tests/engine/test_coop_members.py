"""Cooperative consumers: who is in the group, and what plain calls and maintenance do with it."""

from tests.support.queues.sql import Connection, refused
from tests.support.queues.workers import (
    next_of,
    positions,
    queue_with_ticks,
    register,
    roles,
    unregister,
    work_off,
)


class TestRegistering:
    def test_the_main_consumer_comes_along_and_starts_at_the_last_tick(
        self, bare: Connection
    ) -> None:
        bare.publish("before")
        assert (register(bare, "w1"), register(bare, "w1"), register(bare, "w2")) == (1, 0, 1)
        assert roles(bare) == {"c": "coop_main", "c.w1": "coop_member", "c.w2": "coop_member"}
        bare.publish("after")
        assert bare.payloads(next_of(bare, "joins by asking")) == ["after"]

    def test_a_normal_consumer_is_converted_on_request_and_keeps_its_position(
        self, q: Connection
    ) -> None:
        batch = q.open_batch("a")
        with refused("PQ015", '"c"', "true"):
            register(q, "w1")
        with refused("PQ016", str(batch)):
            register(q, "w1", convert=True)
        q.finish(batch)
        assert roles(q) == {"c": "normal"}
        q.publish("b")
        register(q, "w1", convert=True)
        assert work_off(q, "w1") == ["b"]

    def test_a_name_that_is_taken_is_refused(self, db: Connection) -> None:
        db.make_queue(consumers=("c.w1",))
        with refused("PQ015", "c.w1"):
            register(db, "w1")
        register(db, "b.c", consumer="a")
        with refused("PQ015", "a.b.c"):
            register(db, "c", consumer="a.b")
        db.value("select pgque.register_consumer('q', 'a.b')")
        with refused("PQ015", "a.b.c"):
            register(db, "c", consumer="a.b", convert=True)

    def test_a_subconsumer_has_no_subconsumers(self, db: Connection) -> None:
        queue_with_ticks(db)
        with refused("PQ015", "c.w1"):
            register(db, "x", consumer="c.w1", convert=True)

    def test_any_name_works_but_none_does_not(self, bare: Connection) -> None:
        for name in ("it's", "%s %I", "ü ☃", "x" * 300):
            register(bare, name, consumer=name)
            bare.publish("a")
            assert work_off(bare, name, consumer=name) == ["a"]
        for names in (("c", ""), ("", "w")):
            with refused("PQ005", "subconsumer"):
                bare.value("select pgque.register_subconsumer('q', %s, %s)", *names)


class TestEnding:
    def test_the_last_one_leaves_a_normal_consumer(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        work_off(db, "w1")
        register(db, "w2")
        assert unregister(db, "w1") == 1
        db.publish("b")
        db.value("select pgque.unregister_consumer('q', 'c.w2')")
        assert (roles(db), db.drain()) == ({"c": "normal"}, ["b"])

    def test_an_open_batch_is_not_dropped_but_goes_to_the_others(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        with refused("PQ016", str(batch)):
            unregister(db, "w1")
        with refused("PQ016"):
            db.value("select pgque.unregister_consumer('q', 'c.w1')")
        for handling in (2, -1, None):
            with refused("PQ005", "batch handling"):
                unregister(db, "w1", handling=handling)
        unregister(db, "w1", handling=1)
        db.execute("update pgque.retry_queue set ev_retry_after = now()")
        db.value("select pgque.maint_retry_events()")
        db.tick()
        assert work_off(db, "w2", convert=True) == ["a"]

    def test_events_without_retries_left_become_dead_letters(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        db.value("select pgque.set_queue_config('q', 'max_retries', '0')")
        next_of(db, "w1")
        unregister(db, "w1", handling=1)
        summary = db.rows("select consumer_name, reason from pgque.dlq_summary('q')")
        assert summary == [("c", "subconsumer unregistered")]

    def test_a_main_consumer_ends_after_its_workers(self, db: Connection) -> None:
        queue_with_ticks(db)
        with refused("PQ016", "subconsumers"):
            db.value("select pgque.unregister_consumer('q', 'c')")
        unregister(db, "w1")
        assert db.value("select pgque.unregister_consumer('q', 'c')") == 1


class TestPlainCalls:
    """What is for normal consumers refuses a cooperative one, and says what to do."""

    def test_they_are_refused(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        for call in (
            "next_batch('q', %s)",
            "next_batch_info('q', %s)",
            "next_batch_custom('q', %s, null, null, null)",
            "next_batch_custom('q', %s, null, null, null, 10)",
            "claim_batch('q', %s, 'me')",
            "receive('q', %s)",
            "event_retry_raw('q', %s, now(), 1, now(), 0, 't', 'x', null, null, null, null)",
        ):
            for consumer in ("c", "c.w1"):
                if consumer == "c.w1" or "retry" not in call:  # a retry is for the main consumer
                    with refused("PQ015", f'"{consumer}"', "subconsumer"):
                        db.rows(f"select * from pgque.{call}", consumer)

    def test_a_shared_cursor_can_be_moved_and_a_workers_cannot(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        work_off(db, "w1")
        db.value("select pgque.register_consumer_at('q', 'c', 1)")
        with refused("PQ015", "c.w1"):
            db.value("select pgque.register_consumer_at('q', 'c.w1', 1)")
        assert work_off(db, "w1") == ["a"]


class TestMaintenance:
    def test_a_workers_open_batch_is_not_rotated_away(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        batch = next_of(db, "w1")
        work_off(db, "w2")
        floor = db.value("select tick_id from pgque.find_floor_tick(1)")
        assert (floor, db.last_tick()) == (1, 4)
        for _ in range(4):
            db.rotate()
            db.tick()
        assert db.payloads(batch) == ["a"]

    def test_idle_workers_hold_nothing_back(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        register(db, "idle")
        work_off(db, "w1")
        assert [db.rotate() for _ in range(4)] == [1, 1, 1, 1]

    def test_a_workers_ticks_and_position_are_kept(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        batch = next_of(db, "w1")
        register(db, "idle")
        before = positions(db)
        assert db.compact_positions() > 0
        assert (positions(db), next_of(db, "w1")) == (before, batch)
        db.bloat_ticks()
        db.value("select pgque.register_consumer_at('q', 'c', %s)", db.last_tick())
        assert (db.compact_ticks(), db.payloads(batch)) == (0, ["a"])
