"""What is delivered again comes in batches as small as those that it was sent in."""

import pytest

from tests.support.queues import (
    Connection,
    events,
    finish,
    make_queue,
    next_batch,
    open_batch,
    send,
    tick,
    value,
)

CLAIM = "select batch_id from pgque.claim_batch('q', 'c', 'me', '1 minute', i_max_count => %s)"
INFO = "select batch_id from pgque.next_batch_custom('q', 'c', null, null, null, %s)"


def fail_all(db: Connection, count: int) -> None:
    """Has so many events, each in a tick with nine others, delivered again."""
    for number in range(0, count, 10):
        value(db, "select pgque.send_batch('q', %s::text[])", [str(number)] * 10)
        tick(db)
    while (batch := next_batch(db)) is not None:
        ids = [row[0] for row in events(db, batch)]
        value(db, "select pgque.nack_batch(%s, %s, '0')", batch, ids)
        finish(db, batch)


def batch_sizes(db: Connection, sql: str, maximum: int) -> list[int]:
    sizes = []
    while (batch := value(db, sql, maximum)) is not None:
        sizes.append(len(events(db, batch)))
        value(
            db,
            "select pgque.release_batch(%s, 'me', epoch) from pgque.get_lease_info('q', 'c')"
            if sql == CLAIM
            else "select %s",
            batch,
        )
        finish(db, batch)
    return sizes


@pytest.mark.parametrize("sql", [CLAIM, INFO], ids=["claim", "next_batch_custom"])
@pytest.mark.parametrize("work", ["call pgque.maint_loop('0')", "select pgque.maint()"])
def test_a_batch_of_retries_stays_within_its_maximum(db: Connection, sql: str, work: str) -> None:
    make_queue(db, ticker_max_count="10")
    fail_all(db, 100)
    for _ in range(10):
        db.execute(work.encode())
        value(db, "select pgque.ticker()")
    sizes = batch_sizes(db, sql, 25)
    assert (sum(sizes), max(sizes) <= 25) == (100, True)


def test_retries_and_new_events_count_together(db: Connection) -> None:
    make_queue(db, ticker_max_count="10")
    fail_all(db, 20)
    for _ in range(4):
        value(db, "select pgque.maint()")
        send(db, *"abcd")
        tick(db)
    sizes = batch_sizes(db, INFO, 20)
    assert (sum(sizes), max(sizes) <= 20) == (36, True)


def test_one_call_after_another_moves_all_of_them(db: Connection) -> None:
    """Each portion is ticked by the call that moves the next one, so none waits for a ticker."""
    make_queue(db, ticker_max_count="10")
    fail_all(db, 50)
    moved = [value(db, "select pgque.maint_retry_events()") for _ in range(6)]
    assert moved == [10, 10, 10, 10, 10, 0]


@pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
def test_a_queue_that_others_tick_gets_its_retries_too(db: Connection, switch: str) -> None:
    make_queue(db, ticker_max_count="10")
    fail_all(db, 20)
    value(db, "select pgque.set_queue_config('q', %s, 'true')", switch)
    moved = [value(db, "select pgque.maint_retry_events()") for _ in range(3)]
    assert moved == [10, 10, 0]


@pytest.mark.parametrize("middle", [5_000, 15_000])
def test_ticks_with_gaps_between_their_ids_are_found(db: Connection, middle: int) -> None:
    make_queue(db, external_ticker="true")
    value(db, "select pgque.send_batch('q', array_fill('x'::text, array[30]))")
    sql = (
        "select pgque.ticker('q', %s, now(), (select pgque.seq_getval(queue_event_seq)"
        " from pgque.queue))"
    )
    value(db, sql, 100)
    batch = next_batch(db)
    ids = [row[0] for row in events(db, batch)]
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, ids)
    finish(db, batch)
    value(db, "select pgque.set_queue_config('q', 'ticker_max_count', '10')")
    for number in (1_000, middle, 20_000):
        value(db, "select pgque.maint_retry_events()")
        value(db, sql, number)
    assert batch_sizes(db, INFO, 20) == [20, 10]


def test_cooperative_workers_get_small_batches_too(db: Connection) -> None:
    make_queue(db, consumers=(), ticker_max_count="10")
    value(db, "select pgque.register_subconsumer('q', 'c', 'w')")
    claim = "select batch_id from pgque.next_batch_custom('q', 'c', 'w', null, %s, null, null)"
    value(db, "select pgque.send_batch('q', array_fill('x'::text, array[10]))")
    tick(db)
    batch = value(db, claim, None)
    ids = [row[0] for row in events(db, batch)]
    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, ids)
    finish(db, batch)
    value(db, "select pgque.maint()")
    tick(db)
    batch = value(db, claim, None)
    assert len(events(db, batch)) == 10


def test_one_tick_that_holds_more_is_a_batch_all_the_same(db: Connection) -> None:
    make_queue(db)
    open_batch(db, *"abcde")
    assert len(events(db, value(db, INFO, 2))) == 5
