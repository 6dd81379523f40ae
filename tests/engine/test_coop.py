"""Cooperative consumers: workers that share a consumer's cursor, each batch with one of them."""

from typing import Any

import pytest

from tests.support.queues.sql import Connection, refused
from tests.support.queues.workers import age_worker, next_of, queue_with_ticks, register, work_off

CUSTOM = "pgque.next_batch_custom('q', 'c', 'w1', %s, %s, %s, %s)"


class TestSharing:
    def test_an_idle_poll_writes_nothing(self, db: Connection) -> None:
        queue_with_ticks(db)
        count = "select count(*) from pgque.position_log"
        before = db.value(count)
        next_of(db, "w1", dead="1 hour")
        assert db.value(count) == before

    def test_a_batch_tells_whose_it_is_and_is_read_by_its_plan(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        batch = next_of(db, "w1")
        register(db, "w2")
        ((sql,),) = db.rows("select slice_sql from pgque.batch_read_plan(%s, 4)", batch)
        assert db.rows(sql) == db.events(batch)
        columns = "queue_name, consumer_name, prev_tick_id, tick_id"
        info = db.rows(f"select {columns} from pgque.get_batch_info(%s)", batch)
        assert info == [("q", "c.w1", 1, 2)]
        columns = "consumer_name, last_tick, current_batch"
        info = db.rows(f"select {columns} from pgque.get_consumer_info('q')")
        assert info == [("c", 2, None), ("c.w1", 1, batch), ("c.w2", None, None)]


class TestLimits:
    def test_apply(self, db: Connection) -> None:
        queue_with_ticks(db)
        nothing = (None, None, None, None)
        assert db.rows(f"select * from {CUSTOM}", *nothing) == [(None, None, None)]
        for text in "abc":
            db.publish(text)
        found = db.rows(f"select prev_tick_id, next_tick_id from {CUSTOM}", None, 2, None, None)
        assert found == [(1, 3)]

    def test_need_no_dead_interval_but_a_type_where_either_form_could_be_meant(
        self, db: Connection
    ) -> None:
        queue_with_ticks(db, "a")
        for arguments in (
            "'q', 'c', 'w1'::text, null, null, null",
            "'q', 'c', 'w1', '0', 0, '0'",
            "i_queue => 'q', i_consumer => 'c', i_subconsumer => 'w1', i_min_lag => null,"
            " i_min_count => null, i_min_interval => null",
        ):
            sql = f"select prev_tick_id, next_tick_id from pgque.next_batch_custom({arguments})"
            assert db.rows(sql) == [(1, 2)]
        for third in ("'w1'", "'1 second'", "null"):
            sql = f"select * from pgque.next_batch_custom('q', 'c', {third}, null, null, null)"
            with refused("42725", "is not unique"):
                db.rows(sql)


class TestReceiving:
    def receive(self, db: Connection, count: int | None, dead: str | None = None) -> list[str]:
        sql = "select payload from pgque.receive_coop('q', 'c', 'w1', %s, %s)"
        return [text for (text,) in db.rows(sql, count, dead)]

    def test_returns_the_whole_batch_past_empty_batches(self, db: Connection) -> None:
        queue_with_ticks(db)
        db.tick()
        db.publish("a", "b", "c")
        assert self.receive(db, None) == []
        assert self.receive(db, 3) == ["a", "b", "c"]
        with refused("PQ005"):
            self.receive(db, 0)

    def test_takes_over(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        db.finish(next_of(db, "w1"))
        next_of(db, "dead")
        age_worker(db, "dead")
        assert self.receive(db, 10, "1 hour") == ["b"]


class TestTakingOver:
    @pytest.fixture
    def lost(self, db: Connection) -> int:
        """The batch of a, of a worker dead for two hours; b waits."""
        queue_with_ticks(db, "a", "b")
        batch: int = next_of(db, "dead")
        age_worker(db, "dead")
        return batch

    def test_gives_the_batch_a_new_id_before_new_batches(self, db: Connection, lost: int) -> None:
        taken = next_of(db, "heir", dead="1 hour")
        assert taken != lost and db.payloads(taken) == ["a"]
        with refused("PQ003", str(lost)):
            db.finish(lost)
        db.finish(taken)
        assert work_off(db, "dead") == ["b"]

    def test_needs_a_dead_interval(self, db: Connection, lost: int) -> None:
        assert db.payloads(next_of(db, "heir")) == ["b"]

    @pytest.mark.parametrize("sign", ["batch", "touch", "asking again"])
    def test_leaves_a_worker_with_signs_of_life_alone(
        self, db: Connection, lost: int, sign: str
    ) -> None:
        if sign == "touch":
            db.value("select pgque.touch_subconsumer('q', 'c', 'dead')")
        elif sign == "asking again":
            assert next_of(db, "dead") == lost
        else:
            db.finish(lost)
            assert db.payloads(next_of(db, "dead")) == ["b"]
            assert next_of(db, "heir", dead="1 hour") is None
            return
        assert db.payloads(next_of(db, "heir", dead="1 hour")) == ["b"]

    def test_leaves_a_dead_worker_without_a_batch_alone(self, db: Connection, lost: int) -> None:
        db.finish(lost)
        age_worker(db, "dead")
        assert db.payloads(next_of(db, "heir", dead="1 hour")) == ["b"]

    def test_begins_with_the_longest_dead(self, db: Connection, lost: int) -> None:
        next_of(db, "deader")
        age_worker(db, "deader", "3 hours")
        assert db.payloads(next_of(db, "heir", dead="1 hour")) == ["b"]

    def test_comes_after_an_open_batch(self, db: Connection, lost: int) -> None:
        own = next_of(db, "heir")
        assert next_of(db, "heir", dead="1 hour") == own

    def test_is_for_ones_own_group(self, bare: Connection) -> None:
        register(bare, "w1", consumer="other")
        register(bare, "w1")
        bare.publish("a")
        next_of(bare, "w1", consumer="other")
        work_off(bare, "w1")
        age_worker(bare, "w1", consumer="other")
        assert next_of(bare, "w1", dead="1 hour") is None


class TestFailures:
    def test_dead_letters_are_the_main_consumers_and_replayed_to_whoever_is_next(
        self, db: Connection
    ) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [db.events(batch)[0][0]])
        summary = db.rows("select consumer_name, reason from pgque.dlq_summary('q')")
        assert summary == [("c", "bad")]
        db.finish(batch)
        db.value("select replayed from pgque.dlq_replay_all('q')")
        db.tick()
        assert work_off(db, "w2") == ["a"]


@pytest.fixture
def shared(db: Connection) -> Connection:
    """A queue with a consumer whose subconsumers are w1 and w2, and two batches."""
    queue_with_ticks(db, "x", "y")
    register(db, "w2")
    return db


def claim(db: Connection, sub: str, owner: str = "me", ttl: str = "1 minute", **more: Any) -> Any:
    """The batch and its epoch."""
    named = "".join(f", {name} => %s" for name in more)
    call = f"pgque.claim_coop('q', 'c', %s, %s, %s{named})"
    (found,) = db.rows(f"select batch_id, epoch from {call}", sub, owner, ttl, *more.values())
    return found


def ack(db: Connection, batch: int, epoch: int, owner: str = "me") -> Any:
    return db.value("select pgque.ack_batch(%s, %s, %s)", batch, owner, epoch)


def test_a_maximum_count_takes_several_ticks_at_once(shared: Connection) -> None:
    batch, _ = claim(shared, "w1", i_max_count=10)
    assert shared.payloads(batch) == ["x", "y"]


def test_impossible_limits_and_leases_are_refused(shared: Connection) -> None:
    with refused("PQ005", "min_lag"):
        claim(shared, "w1", i_min_count=2, i_max_count=1)
    for owner, ttl in (("", "1 minute"), ("me", "0")):
        with refused("PQ005", "lease"):
            claim(shared, "w1", owner, ttl)


def test_a_live_lease_keeps_others_out(shared: Connection) -> None:
    held, _ = claim(shared, "w1")
    with refused("PQ004", 'leased by "me"'):
        claim(shared, "w1", owner="you")
    with refused("PQ004", 'leased by "me"'):
        shared.value("select pgque.next_batch('q', 'c', 'w1')")
    taken = shared.value("select pgque.next_batch('q', 'c', 'w2', '0 seconds')")
    assert (shared.payloads(taken), shared.payloads(held)) == (["y"], ["x"])


def test_a_lease_that_ran_out_is_taken_over_and_the_earlier_holder_cannot_ack(
    shared: Connection,
) -> None:
    batch, epoch = claim(shared, "w1", ttl="1 microsecond")
    again, newer = claim(shared, "w1", owner="you")
    assert (again, newer) == (batch, epoch + 1)
    with refused("PQ012"):
        ack(shared, batch, epoch)
    assert ack(shared, batch, newer, owner="you") == 1


def test_only_the_open_batch_that_was_named_is_claimed(shared: Connection) -> None:
    batch, epoch = claim(shared, "w1")
    shared.value("select pgque.release_batch(%s, 'me', %s)", batch, epoch)
    assert claim(shared, "w1", i_batch_id=batch)[0] == batch
    with refused("PQ003", f"batch {batch} of q/c.w2 is not open"):
        claim(shared, "w2", i_batch_id=batch)


def test_to_name_a_batch_registers_nobody(shared: Connection) -> None:
    with refused("PQ003"):
        claim(shared, "new", i_batch_id=1)
    with refused("PQ002", "c.new"):
        shared.value("select batch_id from pgque.get_lease_info('q', 'c.new')")
    with refused("PQ002", '"nobody"'):
        shared.rows("select pgque.claim_coop('q', 'nobody', 'w', 'me', i_batch_id => 1)")
