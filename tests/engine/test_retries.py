"""Events that failed: again later, to the same consumer, and in the end to the dead letters."""

import pytest

from tests.support.queues.sql import Connection, refused


def nack(db: Connection, batch: int, msg_ids: list[int], after: str | None = "0") -> int:
    return db.value("select pgque.nack_batch(%s, %s, %s, 'broke')", batch, msg_ids, after)


def fail_all(db: Connection, batch: int, after: str = "0") -> None:
    nack(db, batch, db.event_ids(batch), after)
    db.finish(batch)


def deliver_retries(db: Connection) -> int:
    """Moves the retries that are due, and ticks their queues."""
    moved: int = db.value("select pgque.maint_retry_events()")
    db.value("select pgque.ticker()")
    return moved


def dead_letters(db: Connection) -> list[tuple[str, str, str]]:
    return db.rows(
        "select c.co_name, d.ev_data, d.dl_reason from pgque.dead_letter d"
        " join pgque.consumer c on c.co_id = d.dl_consumer_id order by d.dl_id"
    )


@pytest.fixture
def failed(q: Connection) -> Connection:
    """A queue with one event, which waits to be delivered again."""
    fail_all(q, q.open_batch("broken"))
    return q


def test_a_nacked_event_comes_again_as_it_was_and_the_others_do_not(q: Connection) -> None:
    q.value("select pgque.insert_event('q', 't', 'x', '1', '2', '3', '4')")
    batch = q.open_batch("fine", "fine too")
    first, *_ = q.events(batch)
    with q.transaction(force_rollback=True):
        nack(q, batch, q.event_ids(batch))
    assert [nack(q, batch, [first[0]]) for _ in range(2)] == [1, 1]
    assert nack(q, batch, []) == 0
    q.finish(batch)
    assert deliver_retries(q) == 1
    (again,) = q.events(q.next_batch())
    assert (again[:2], again[3], again[4:]) == (first[:2], 1, first[4:])


def test_an_event_that_is_given_back_by_two_attempts_comes_again_once(q: Connection) -> None:
    """The first attempt died before its ack, and maintenance ran before the second one."""
    batch = q.open_batch("broken")
    nack(q, batch, q.event_ids(batch))
    assert deliver_retries(q) == 0
    nack(q, batch, q.event_ids(batch))
    q.finish(batch)
    assert deliver_retries(q) == 1
    assert q.drain() == ["broken"]
    assert deliver_retries(q) == 0


def test_an_event_that_was_given_back_and_then_given_up_does_not_come_again(q: Connection) -> None:
    batch = q.open_batch("broken")
    (event,) = q.event_ids(batch)
    nack(q, batch, [event])
    q.value("select pgque.dead_letter_batch(%s, %s, 'broken for good')", batch, [event])
    nack(q, batch, [event])
    q.finish(batch)
    assert dead_letters(q) == [("c", "broken", "broken for good")]
    q.execute("delete from pgque.dead_letter")  # as a purge does
    assert deliver_retries(q) == 0


@pytest.mark.parametrize("replayed_before", [False, True])
def test_an_event_that_another_session_gives_back_after_it_was_given_up_comes_once(
    q: Connection, replayed_before: bool
) -> None:
    """The other session's snapshot does not have the dead letter."""
    batch = q.open_batch("broken")
    other = q.another()
    with other.transaction():
        other.execute("set transaction isolation level repeatable read")
        events = other.event_ids(batch)
        q.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, events)
        nack(other, batch, events)
    q.finish(batch)
    if not replayed_before:
        assert deliver_retries(q) == 0
    q.value("select pgque.dlq_replay(dl_id) from pgque.dead_letter")
    assert deliver_retries(q) == 0
    q.tick()
    assert q.drain() == ["broken"]


def test_a_dead_letter_is_not_scheduled_with_its_batch(q: Connection) -> None:
    batch = q.open_batch("dead", "alive")
    dead, _ = q.event_ids(batch)
    q.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, [dead])
    assert q.value("select pgque.batch_retry(%s, 0)", batch) == 1
    q.finish(batch)
    assert deliver_retries(q) == 1
    assert q.drain() == ["alive"]


def test_what_one_consumer_gives_up_comes_again_to_another(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    mine, theirs = db.open_batch("a", "b"), db.next_batch(consumer="other")
    a, b = db.event_ids(mine)
    db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", mine, [a])
    nack(db, mine, [b], "1 hour")
    assert db.value("select pgque.batch_retry(%s, 0)", theirs) == 2
    for batch in (mine, theirs):
        db.finish(batch)
    assert (deliver_retries(db), db.drain(consumer="other")) == (2, ["a", "b"])
    assert db.rows("select ev_data from pgque.retry_queue") == [("b",)]


def test_retries_do_not_wait_for_a_later_batch_of_their_consumer(failed: Connection) -> None:
    assert failed.open_batch("next")
    assert deliver_retries(failed) == 1


@pytest.mark.parametrize(("maximum", "deliveries"), [("0", 1), ("2", 3), (None, 6)])
def test_events_die_after_their_retries(
    q: Connection, maximum: str | None, deliveries: int
) -> None:
    q.value("select pgque.set_queue_config('q', 'max_retries', %s)", maximum)
    q.publish("broken")
    delivered = 0
    while (batch := q.next_batch()) is not None:
        delivered += len(q.events(batch))
        fail_all(q, batch)
        deliver_retries(q)
    assert (delivered, dead_letters(q)) == (deliveries, [("c", "broken", "broke")])


@pytest.mark.parametrize("when", ["0", "now() - interval '1 hour'"])
def test_event_retry_retries_without_limit(db: Connection, when: str) -> None:
    db.make_queue(max_retries="0")
    db.publish("broken")
    for _ in range(3):
        batch = db.next_batch()
        db.value(f"select pgque.event_retry(%s, %s, {when})", batch, *db.event_ids(batch))
        db.finish(batch)
        deliver_retries(db)
    assert (dead_letters(db), db.drain()) == ([], ["broken"])


def test_an_id_that_is_not_in_the_batch_is_refused(db: Connection) -> None:
    db.make_queue(consumers=("c", "other"))
    fail_all(db, db.open_batch("broken"))
    db.drain(consumer="other")
    deliver_retries(db)
    batch = db.next_batch(consumer="other")  # the retry is the other consumer's
    (later,) = db.send("b")
    db.tick()
    for call in (
        "nack_batch(%s, array[%s]::bigint[])",
        "dead_letter_batch(%s, array[%s]::bigint[], 'bad')",
        "event_retry(%s, %s, 0)",
        "event_retry(%s, %s, now())",
    ):
        for event, named in ((4711, "4711"), (later, str(later)), (None, "null"), (1, "1")):
            with refused("PQ009", f"event {named}"):
                db.value(f"select pgque.{call}", batch, event)


def test_one_wrong_id_or_time_settles_none(q: Connection) -> None:
    batch = q.open_batch("a")
    with refused("PQ009", f"batch {batch} has no event 4711, 4712"):
        nack(q, batch, [4712, *q.event_ids(batch), 4711])
    for after in ("-1 second", None):
        with refused("PQ005"):
            nack(q, batch, q.event_ids(batch), after)
    for seconds in (-1, None):
        with refused("PQ005", "seconds"):
            q.value("select pgque.event_retry(%s, 1, %s::integer)", batch, seconds)
    assert q.rows("select * from pgque.retry_queue") == []


def test_retries_of_a_closed_queue_wait_until_it_opens(failed: Connection) -> None:
    failed.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    assert deliver_retries(failed) == 0
    failed.value("select pgque.set_queue_config('q', 'disable_insert', 'false')")
    assert (deliver_retries(failed), failed.drain()) == (1, ["broken"])


def test_retries_that_another_moves_are_left_to_it(failed: Connection) -> None:
    mover = failed.another()
    with mover.transaction():
        mover.value("select pgque.maint_retry_events()")
        assert failed.value("select pgque.maint_retry_events()") == 0
    failed.value("select pgque.ticker()")
    assert failed.drain() == ["broken"]


class TestPortions:
    """What is delivered again comes in batches as small as those that it was sent in."""

    CLAIM = "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 minute', i_max_count => %s)"
    INFO = "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null, %s)"

    @pytest.fixture
    def tens(self, db: Connection) -> Connection:
        db.make_queue(ticker_max_count="10")
        return db

    def fail_tens(self, db: Connection, count: int) -> None:
        """Has so many events, each in a tick with nine others, delivered again."""
        for number in range(0, count, 10):
            db.value("select pgque.send_batch('q', %s::text[])", [str(number)] * 10)
            db.tick()
        while (batch := db.next_batch()) is not None:
            fail_all(db, batch)

    def batch_sizes(self, db: Connection, sql: str, maximum: int) -> list[int]:
        release = "select pgque.release_batch(%s, 'me', epoch) from pgque.get_lease_info('q', 'c')"
        sizes = []
        while (batch := db.value(sql, maximum)) is not None:
            sizes.append(len(db.events(batch)))
            if sql == self.CLAIM:
                db.value(release, batch)
            db.finish(batch)
        return sizes

    @pytest.mark.parametrize(
        ("sql", "work"),
        [(CLAIM, "call pgque.maint_loop('0')"), (INFO, "select pgque.maint()")],
        ids=["claim", "next_batch_custom"],
    )
    def test_a_batch_stays_within_its_maximum(self, tens: Connection, sql: str, work: str) -> None:
        self.fail_tens(tens, 100)
        for _ in range(10):
            tens.execute(work.encode())
            tens.value("select pgque.ticker()")
        sizes = self.batch_sizes(tens, sql, 25)
        assert (sum(sizes), max(sizes) <= 25) == (100, True)

    @pytest.mark.parametrize("switch", [None, "ticker_paused", "external_ticker"])
    def test_one_call_after_another_moves_all(self, tens: Connection, switch: str | None) -> None:
        """Each portion is ticked by the call that moves the next one: none waits for a ticker."""
        self.fail_tens(tens, 30)
        if switch:
            tens.value("select pgque.set_queue_config('q', %s, 'true')", switch)
        moved = [tens.value("select pgque.maint_retry_events()") for _ in range(4)]
        assert moved == [10, 10, 10, 0]

    @pytest.mark.parametrize("other_waits", [False, True])
    def test_each_is_ticked_before_the_next_one(self, tens: Connection, other_waits: bool) -> None:
        self.fail_tens(tens, 30)
        tens.make_queue("other")
        if other_waits:
            tens.value("select pgque.force_next_tick('other')")
        for _ in range(3):
            tens.value("select pgque.maint_retry_events()")
        tens.value("select pgque.ticker()")
        assert self.batch_sizes(tens, self.INFO, 10) == [10, 10, 10]

    @pytest.mark.parametrize("middle", [5_000, 15_000])
    def test_ticks_with_gaps_between_their_ids_are_found(self, db: Connection, middle: int) -> None:
        db.make_queue(external_ticker="true")
        db.value("select pgque.send_batch('q', array_fill('x'::text, array[30]))")
        seq = "(select pgque.seq_getval(queue_event_seq) from pgque.queue)"
        sql = f"select pgque.ticker('q', %s, now(), {seq})"
        db.value(sql, 100)
        fail_all(db, db.next_batch())
        db.value("select pgque.set_queue_config('q', 'ticker_max_count', '10')")
        for number in (1_000, middle, 20_000):
            db.value("select pgque.maint_retry_events()")
            db.value(sql, number)
        sizes = self.batch_sizes(db, self.INFO, 20)
        assert (sum(sizes), max(sizes)) == (30, 20)

    def test_cooperative_workers_get_small_batches_too(self, db: Connection) -> None:
        db.make_queue(consumers=(), ticker_max_count="10")
        db.value("select pgque.register_subconsumer('q', 'c', 'w')")
        claim = self.INFO.replace("'c'", "'c', 'w'").replace("%s", "null")
        db.value("select pgque.send_batch('q', array_fill('x'::text, array[10]))")
        db.tick()
        fail_all(db, db.value(claim))
        db.value("select pgque.maint()")
        db.tick()
        assert len(db.events(db.value(claim))) == 10

    def test_one_tick_with_more_of_them_comes_alone_before_an_empty_one(
        self, q: Connection
    ) -> None:
        fail_all(q, q.open_batch(*"abcde"))
        deliver_retries(q)
        q.tick()
        assert len(q.events(q.value(self.INFO, 2))) == 5
