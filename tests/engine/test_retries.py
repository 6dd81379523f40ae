"""Events that failed: again later, to the same consumer, and in the end to the dead letters."""

import pytest

from tests.support.queues import (
    Another,
    Connection,
    drain,
    event_ids,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    refused,
    rows,
    send,
    tick,
    value,
)


def nack(db: Connection, batch: int, msg_ids: list[int], after: str | None = "0") -> int:
    settled: int = value(db, "select pgque.nack_batch(%s, %s, %s, 'broke')", batch, msg_ids, after)
    return settled


def fail_all(db: Connection, batch: int, after: str = "0") -> None:
    nack(db, batch, event_ids(db, batch), after)
    finish(db, batch)


def deliver_retries(db: Connection) -> int:
    """Moves the retries that are due, and ticks their queues."""
    moved: int = value(db, "select pgque.maint_retry_events()")
    value(db, "select pgque.ticker()")
    return moved


def dead_letters(db: Connection) -> list[tuple[str, str, str]]:
    return rows(
        db,
        "select c.co_name, d.ev_data, d.dl_reason from pgque.dead_letter d"
        " join pgque.consumer c on c.co_id = d.dl_consumer_id order by d.dl_id",
    )


@pytest.fixture
def failed(q: Connection) -> Connection:
    """A queue with one event, which waits to be delivered again."""
    fail_all(q, open_batch(q, "broken"))
    return q


def test_a_nacked_event_comes_again_as_it_was_and_the_others_do_not(q: Connection) -> None:
    value(q, "select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')")
    batch = open_batch(q, "fine", "fine too")
    first, *_ = events(q, batch)
    with q.transaction(force_rollback=True):
        nack(q, batch, event_ids(q, batch))
    assert [nack(q, batch, [first[0]]) for _ in range(2)] == [1, 1]
    assert nack(q, batch, []) == 0
    finish(q, batch)
    assert deliver_retries(q) == 1
    (again,) = events(q, next_batch(q))
    assert (again[:2], again[3], again[4:]) == (first[:2], 1, first[4:])


def test_an_event_that_is_given_back_by_two_attempts_comes_again_once(q: Connection) -> None:
    """The first attempt died before its ack, and maintenance ran before the second one."""
    batch = open_batch(q, "broken")
    nack(q, batch, event_ids(q, batch))
    assert deliver_retries(q) == 0
    nack(q, batch, event_ids(q, batch))
    finish(q, batch)
    assert deliver_retries(q) == 1
    assert drain(q) == ["broken"]
    assert deliver_retries(q) == 0


def test_an_event_that_was_given_back_and_then_given_up_does_not_come_again(q: Connection) -> None:
    batch = open_batch(q, "broken")
    (event,) = event_ids(q, batch)
    nack(q, batch, [event])
    value(q, "select pgque.dead_letter_batch(%s, %s, 'broken for good')", batch, [event])
    nack(q, batch, [event])
    finish(q, batch)
    assert deliver_retries(q) == 0
    assert dead_letters(q) == [("c", "broken", "broken for good")]


def test_a_dead_letter_is_not_scheduled_with_its_batch(q: Connection) -> None:
    batch = open_batch(q, "dead", "alive")
    dead, _ = event_ids(q, batch)
    value(q, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [dead])
    assert value(q, "select pgque.batch_retry(%s, 0)", batch) == 1
    finish(q, batch)
    assert deliver_retries(q) == 1
    assert drain(q) == ["alive"]


def test_retries_do_not_wait_for_a_later_batch_of_their_consumer(failed: Connection) -> None:
    assert open_batch(failed, "next")
    assert deliver_retries(failed) == 1


def test_each_consumer_retries_an_event_by_itself(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    fail_all(db, open_batch(db, "broken"))
    deliver_retries(db)
    assert (drain(db), drain(db, consumer="other")) == (["broken"], ["broken"])
    send(db, "broken too")
    tick(db)
    for consumer in ("c", "other"):
        fail_all(db, next_batch(db, consumer=consumer))
    deliver_retries(db)
    assert [drain(db, consumer=name) for name in ("c", "other")] == [["broken too"]] * 2


def test_a_retry_waits_for_its_time(q: Connection) -> None:
    fail_all(q, open_batch(q, "broken"), after="1 hour")
    assert (deliver_retries(q), drain(q)) == (0, [])


@pytest.mark.parametrize(("maximum", "deliveries"), [("0", 1), ("2", 3), (None, 6)])
def test_events_die_after_their_retries(
    q: Connection, maximum: str | None, deliveries: int
) -> None:
    value(q, "select pgque.set_queue_config('q', 'max_retries', %s)", maximum)
    send(q, "broken")
    tick(q)
    delivered = 0
    while (batch := next_batch(q)) is not None:
        delivered += len(events(q, batch))
        fail_all(q, batch)
        deliver_retries(q)
    assert (delivered, dead_letters(q)) == (deliveries, [("c", "broken", "broke")])


def test_nack_of_a_message_takes_what_receive_gave(q: Connection) -> None:
    send(q, "broken")
    tick(q)
    value(q, "select pgque.nack(m.batch_id, m, '0', 'broke') from pgque.receive('q', 'c') m")
    finish(q, next_batch(q))
    deliver_retries(q)
    assert drain(q) == ["broken"]


@pytest.mark.parametrize("when", ["0", "now() - interval '1 hour'"])
def test_event_retry_retries_without_limit(db: Connection, when: str) -> None:
    make_queue(db, max_retries="0")
    send(db, "broken")
    tick(db)
    for _ in range(3):
        batch = next_batch(db)
        value(db, f"select pgque.event_retry(%s, %s, {when})", batch, *event_ids(db, batch))
        finish(db, batch)
        deliver_retries(db)
    assert (dead_letters(db), drain(db)) == ([], ["broken"])


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.nack_batch(%s, array[%s]::bigint[])",
        "select pgque.dead_letter_batch(%s, array[%s]::bigint[], 'bad')",
        "select pgque.event_retry(%s, %s, 0)",
        "select pgque.event_retry(%s, %s, now())",
    ],
)
def test_an_id_that_is_not_in_the_batch_is_refused(db: Connection, call: str) -> None:
    make_queue(db, consumers=("c", "other"))
    fail_all(db, open_batch(db, "broken"))
    drain(db, consumer="other")
    deliver_retries(db)
    batch = next_batch(db, consumer="other")  # the retry is the other consumer's
    (later,) = send(db, "b")
    tick(db)
    for event, named in ((4711, "4711"), (later, str(later)), (None, "null"), (1, "1")):
        with refused("PQ009", named, str(batch)):
            value(db, call, batch, event)


def test_one_wrong_id_or_time_settles_none(q: Connection) -> None:
    batch = open_batch(q, "a")
    with refused("PQ009", f"batch {batch} has no event 4711, 4712"):
        nack(q, batch, [4712, *event_ids(q, batch), 4711])
    for after in ("-1 second", None):
        with refused("PQ005"):
            nack(q, batch, event_ids(q, batch), after)
    for seconds in (-1, None):
        with refused("PQ005", "seconds"):
            value(q, "select pgque.event_retry(%s, 1, %s::integer)", batch, seconds)
    assert rows(q, "select * from pgque.retry_queue") == []


def test_a_dead_letter_of_one_consumer_is_retried_for_another_only(db: Connection) -> None:
    make_queue(db, consumers=("c", "other"))
    batch = open_batch(db, "broken")
    value(db, "select pgque.dead_letter_batch(%s, %s, 'bad')", batch, event_ids(db, batch))
    fail_all(db, batch)
    assert deliver_retries(db) == 0
    fail_all(db, next_batch(db, consumer="other"))
    assert (deliver_retries(db), drain(db, consumer="other")) == (1, ["broken"])
    assert dead_letters(db) == [("c", "broken", "bad")]


def test_retries_of_a_closed_queue_wait_until_it_opens(failed: Connection) -> None:
    value(failed, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
    assert deliver_retries(failed) == 0
    value(failed, "select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert (deliver_retries(failed), drain(failed)) == (1, ["broken"])


def test_retries_do_not_wait_for_a_tick_of_another_queue(db: Connection) -> None:
    for queue, is_paused in (("paused", "true"), ("q", "false")):
        make_queue(db, queue)
        fail_all(db, open_batch(db, "broken", queue=queue))
        value(db, "select pgque.set_queue_config(%s, 'ticker_paused', %s)", queue, is_paused)
        assert value(db, "select pgque.maint_retry_events()") == 1


def test_retries_that_another_moves_are_left_to_it(failed: Connection, another: Another) -> None:
    mover = another()
    with mover.transaction():
        value(mover, "select pgque.maint_retry_events()")
        assert value(failed, "select pgque.maint_retry_events()") == 0
    value(failed, "select pgque.ticker()")
    assert drain(failed) == ["broken"]


def test_a_delivered_retry_ticks_although_it_is_no_new_event(db: Connection) -> None:
    make_queue(db, ticker_max_lag="1 day", ticker_idle_period="1 day")
    fail_all(db, open_batch(db, "broken"))
    value(db, "select pgque.maint()")
    assert value(db, "select pgque.ticker()") == 1


class TestPortions:
    """What is delivered again comes in batches as small as those that it was sent in."""

    CLAIM = "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 minute', i_max_count => %s)"
    INFO = "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null, %s)"

    @pytest.fixture
    def tens(self, db: Connection) -> Connection:
        make_queue(db, ticker_max_count="10")
        return db

    def fail_tens(self, db: Connection, count: int) -> None:
        """Has so many events, each in a tick with nine others, delivered again."""
        for number in range(0, count, 10):
            value(db, "select pgque.send_batch('q', %s::text[])", [str(number)] * 10)
            tick(db)
        while (batch := next_batch(db)) is not None:
            fail_all(db, batch)

    def batch_sizes(self, db: Connection, sql: str, maximum: int) -> list[int]:
        release = "select pgque.release_batch(%s, 'me', epoch) from pgque.get_lease_info('q', 'c')"
        sizes = []
        while (batch := value(db, sql, maximum)) is not None:
            sizes.append(len(events(db, batch)))
            if sql == self.CLAIM:
                value(db, release, batch)
            finish(db, batch)
        return sizes

    @pytest.mark.parametrize("sql", [CLAIM, INFO], ids=["claim", "next_batch_custom"])
    @pytest.mark.parametrize("work", ["call pgque.maint_loop('0')", "select pgque.maint()"])
    def test_a_batch_stays_within_its_maximum(self, tens: Connection, sql: str, work: str) -> None:
        self.fail_tens(tens, 100)
        for _ in range(10):
            tens.execute(work.encode())
            value(tens, "select pgque.ticker()")
        sizes = self.batch_sizes(tens, sql, 25)
        assert (sum(sizes), max(sizes) <= 25) == (100, True)

    def test_retries_and_new_events_count_together(self, tens: Connection) -> None:
        self.fail_tens(tens, 20)
        for _ in range(4):
            value(tens, "select pgque.maint()")
            send(tens, *"abcd")
            tick(tens)
        sizes = self.batch_sizes(tens, self.INFO, 20)
        assert (sum(sizes), max(sizes) <= 20) == (36, True)

    @pytest.mark.parametrize("switch", [None, "ticker_paused", "external_ticker"])
    def test_one_call_after_another_moves_all(self, tens: Connection, switch: str | None) -> None:
        """Each portion is ticked by the call that moves the next one: none waits for a ticker."""
        self.fail_tens(tens, 30)
        if switch:
            value(tens, "select pgque.set_queue_config('q', %s, 'true')", switch)
        moved = [value(tens, "select pgque.maint_retry_events()") for _ in range(4)]
        assert moved == [10, 10, 10, 0]

    @pytest.mark.parametrize("middle", [5_000, 15_000])
    def test_ticks_with_gaps_between_their_ids_are_found(self, db: Connection, middle: int) -> None:
        make_queue(db, external_ticker="true")
        value(db, "select pgque.send_batch('q', array_fill('x'::text, array[30]))")
        seq = "(select pgque.seq_getval(queue_event_seq) from pgque.queue)"
        sql = f"select pgque.ticker('q', %s, now(), {seq})"
        value(db, sql, 100)
        fail_all(db, next_batch(db))
        value(db, "select pgque.set_queue_config('q', 'ticker_max_count', '10')")
        for number in (1_000, middle, 20_000):
            value(db, "select pgque.maint_retry_events()")
            value(db, sql, number)
        sizes = self.batch_sizes(db, self.INFO, 20)
        assert (sum(sizes), max(sizes)) == (30, 20)

    def test_cooperative_workers_get_small_batches_too(self, db: Connection) -> None:
        make_queue(db, consumers=(), ticker_max_count="10")
        value(db, "select pgque.register_subconsumer('q', 'c', 'w')")
        claim = (
            "select batch_id from pgque.next_batch_custom('q', 'c', 'w', null, null, null, null)"
        )
        value(db, "select pgque.send_batch('q', array_fill('x'::text, array[10]))")
        tick(db)
        fail_all(db, value(db, claim))
        value(db, "select pgque.maint()")
        tick(db)
        assert len(events(db, value(db, claim))) == 10

    def test_one_tick_that_holds_more_is_a_batch_all_the_same(self, q: Connection) -> None:
        open_batch(q, *"abcde")
        assert len(events(q, value(q, self.INFO, 2))) == 5
