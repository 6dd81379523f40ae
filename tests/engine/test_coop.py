"""Cooperative consumers: workers that share a consumer's cursor, each batch with one of them."""

import pytest

from tests.support.queues import (
    Connection,
    drain,
    events,
    finish,
    make_queue,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
)
from tests.support.workers import age_worker, next_of, queue_with_ticks, register, work_off


class TestSharing:
    def test_each_batch_goes_to_one_worker(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        batches = [next_of(db, worker) for worker in ("w1", "w2", "w3")]
        assert [payloads(db, batch) for batch in batches] == [["a"], ["b"], ["c"]]

    def test_without_more_ticks_there_is_no_batch(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        assert next_of(db, "w2") is None

    def test_a_worker_gets_its_open_batch_again(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        assert next_of(db, "w1") == next_of(db, "w1")

    def test_a_worker_that_finished_gets_the_next_batch(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        next_of(db, "w2")
        assert work_off(db, "w1") == ["b", "c"]

    def test_batches_may_finish_in_any_order(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        first, second = next_of(db, "w1"), next_of(db, "w2")
        finish(db, second)
        assert payloads(db, first) == ["a"]

    def test_another_consumer_gets_all(self, db: Connection) -> None:
        make_queue(db, consumers=("alone",))
        register(db, "w1")
        send(db, "a")
        tick(db)
        work_off(db, "w1")
        assert drain(db, consumer="alone") == ["a"]

    def test_two_groups_share_nothing(self, db: Connection) -> None:
        make_queue(db, consumers=())
        register(db, "w1", consumer="c")
        register(db, "w1", consumer="d")
        send(db, "a")
        tick(db)
        assert (work_off(db, "w1"), work_off(db, "w1", consumer="d")) == (["a"], ["a"])

    def test_an_idle_poll_writes_nothing(self, db: Connection) -> None:
        queue_with_ticks(db)
        count = "select count(*) from pgque.position_log"
        before = value(db, count)
        next_of(db, "w1", dead="1 hour")
        assert value(db, count) == before

    def test_a_batch_is_read_by_its_plan(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        batch = next_of(db, "w1")
        ((sql,),) = rows(db, "select slice_sql from pgque.batch_read_plan(%s, 4)", batch)
        assert rows(db, sql) == events(db, batch)

    def test_a_batch_tells_whose_it_is(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        assert rows(
            db,
            "select queue_name, consumer_name, prev_tick_id, tick_id from pgque.get_batch_info(%s)",
            batch,
        ) == [("q", "c.w1", 1, 2)]

    def test_consumer_info_lists_the_workers(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        register(db, "w2")
        assert rows(
            db, "select consumer_name, last_tick, current_batch from pgque.get_consumer_info('q')"
        ) == [("c", 2, None), ("c.w1", 1, batch), ("c.w2", None, None)]

    def test_limits_apply(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b", "c")
        assert rows(
            db,
            "select prev_tick_id, next_tick_id from pgque.next_batch_custom("
            "'q', 'c', 'w1', null, 2, null, null)",
        ) == [(1, 3)]

    @pytest.mark.parametrize(
        "arguments",
        [
            "'q', 'c', 'w1'::text, null, null, null",
            "'q', 'c', 'w1', '0', 0, '0'",
            "i_queue => 'q', i_consumer => 'c', i_subconsumer => 'w1', i_min_lag => null,"
            " i_min_count => null, i_min_interval => null",
        ],
    )
    def test_the_dead_interval_may_be_left_out(self, db: Connection, arguments: str) -> None:
        queue_with_ticks(db, "a")
        found = rows(
            db, f"select prev_tick_id, next_tick_id from pgque.next_batch_custom({arguments})"
        )
        assert found == [(1, 2)]

    @pytest.mark.parametrize("third", ["'w1'", "'1 second'", "null"])
    def test_six_arguments_that_could_mean_either_form_are_refused(
        self, db: Connection, third: str
    ) -> None:
        queue_with_ticks(db, "a")
        with refused("42725", "is not unique"):
            rows(db, f"select * from pgque.next_batch_custom('q', 'c', {third}, null, null, null)")

    def test_no_batch_is_a_row_of_nulls(self, db: Connection) -> None:
        queue_with_ticks(db)
        assert rows(
            db, "select * from pgque.next_batch_custom('q', 'c', 'w1', null, null, null, null)"
        ) == [(None, None, None)]


class TestReceiving:
    RECEIVE = "select payload, batch_id from pgque.receive_coop('q', 'c', 'w1', %s, %s)"

    def test_it_returns_messages_until_the_ack(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        ((payload, batch),) = rows(db, self.RECEIVE, 10, None)
        value(db, "select pgque.ack(%s)", batch)
        ((following, _),) = rows(db, self.RECEIVE, 10, None)
        assert (payload, following) == ("a", "b")

    def test_it_passes_empty_batches(self, db: Connection) -> None:
        queue_with_ticks(db)
        tick(db)
        send(db, "a")
        tick(db)
        assert [text for text, _ in rows(db, self.RECEIVE, 10, None)] == ["a"]

    def test_it_returns_no_more_than_asked_for(self, db: Connection) -> None:
        queue_with_ticks(db)
        send(db, "a", "b", "c")
        tick(db)
        assert [text for text, _ in rows(db, self.RECEIVE, 2, None)] == ["a", "b"]

    def test_it_returns_nothing_if_no_number_is_asked_for(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        assert rows(db, self.RECEIVE, None, None) == []

    def test_it_takes_over(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "dead")
        age_worker(db, "dead")
        assert [text for text, _ in rows(db, self.RECEIVE, 10, "1 hour")] == ["a"]

    @pytest.mark.parametrize("count", [0, -1])
    def test_no_messages_are_not_asked_for(self, db: Connection, count: int) -> None:
        queue_with_ticks(db)
        with refused("PQ005"):
            rows(db, self.RECEIVE, count, None)


class TestTakingOver:
    def test_a_dead_workers_batch_comes_under_a_new_id(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        lost = next_of(db, "dead")
        age_worker(db, "dead")
        taken = next_of(db, "heir", dead="1 hour")
        assert taken not in (None, lost)
        assert payloads(db, taken) == ["a"]

    def test_a_late_ack_fails(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        lost = next_of(db, "dead")
        age_worker(db, "dead")
        taken = next_of(db, "heir", dead="1 hour")
        with refused("PQ003", str(lost)):
            finish(db, lost)
        finish(db, taken)

    def test_a_worker_with_signs_of_life_keeps_its_batch(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "w1")
        assert next_of(db, "w2", dead="1 hour") is None

    def test_without_a_dead_interval_nothing_is_taken_over(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "dead")
        age_worker(db, "dead")
        assert next_of(db, "heir") is None

    def test_a_touch_is_a_sign_of_life(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "slow")
        age_worker(db, "slow")
        value(db, "select pgque.touch_subconsumer('q', 'c', 'slow')")
        assert next_of(db, "heir", dead="1 hour") is None

    def test_asking_again_is_a_sign_of_life(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "slow")
        age_worker(db, "slow")
        next_of(db, "slow")
        assert next_of(db, "heir", dead="1 hour") is None

    def test_a_dead_worker_without_a_batch_is_left_alone(self, db: Connection) -> None:
        queue_with_ticks(db)
        register(db, "dead")
        age_worker(db, "dead")
        send(db, "a")
        tick(db)
        assert payloads(db, next_of(db, "heir", dead="1 hour")) == ["a"]

    def test_a_batch_taken_over_comes_before_new_ones(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "dead")
        age_worker(db, "dead")
        assert payloads(db, next_of(db, "heir", dead="1 hour")) == ["a"]

    def test_the_longest_dead_goes_first(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "dead")
        next_of(db, "deader")
        age_worker(db, "dead", "2 hours")
        age_worker(db, "deader", "3 hours")
        assert payloads(db, next_of(db, "heir", dead="1 hour")) == ["b"]

    def test_an_open_batch_comes_before_a_dead_ones(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "dead")
        own = next_of(db, "heir")
        age_worker(db, "dead")
        assert next_of(db, "heir", dead="1 hour") == own

    def test_a_worker_that_comes_back_goes_on(self, db: Connection) -> None:
        queue_with_ticks(db, "a", "b")
        next_of(db, "dead")
        age_worker(db, "dead")
        next_of(db, "heir", dead="1 hour")
        assert work_off(db, "dead") == ["b"]

    def test_another_groups_dead_are_not_ours(self, db: Connection) -> None:
        make_queue(db, consumers=())
        register(db, "w1", consumer="other")
        register(db, "w1")
        send(db, "a")
        tick(db)
        next_of(db, "w1", consumer="other")
        work_off(db, "w1")
        age_worker(db, "w1", consumer="other")
        assert next_of(db, "w1", dead="1 hour") is None


class TestFailures:
    def test_a_retry_comes_to_whoever_is_next(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [events(db, batch)[0][0]])
        finish(db, batch)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        assert work_off(db, "w2") == ["a"]

    def test_a_retry_comes_to_no_other_consumer(self, db: Connection) -> None:
        make_queue(db, consumers=("alone",))
        register(db, "w1")
        send(db, "a")
        tick(db)
        batch = next_of(db, "w1")
        value(db, "select pgque.batch_retry(%s, 0)", batch)
        finish(db, batch)
        value(db, "select pgque.maint_retry_events()")
        tick(db)
        assert drain(db, consumer="alone") == ["a"]

    def test_dead_letters_are_the_main_consumers(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [events(db, batch)[0][0]])
        assert rows(db, "select consumer_name, reason from pgque.dlq_summary('q')") == [
            ("c", "bad")
        ]

    def test_a_replay_comes_to_whoever_is_next(self, db: Connection) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "w1")
        value(db, "select pgque.dead_letter_batch(%s, %s, '')", batch, [events(db, batch)[0][0]])
        finish(db, batch)
        value(db, "select replayed from pgque.dlq_replay_all('q')")
        tick(db)
        assert work_off(db, "w2") == ["a"]


@pytest.mark.parametrize(
    "limits",
    [
        "'-1 s', null, null, null",
        "null, -1, null, null",
        "null, null, '-1 s', null",
        "null, null, null, '-1 s'",
    ],
)
def test_negative_limits_are_refused(db: Connection, limits: str) -> None:
    queue_with_ticks(db)
    with refused("PQ005"):
        rows(db, f"select pgque.next_batch_custom('q', 'c', 'w1', {limits})")
