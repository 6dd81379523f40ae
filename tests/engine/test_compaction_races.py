"""What meets a compaction in READ COMMITTED goes on as if it had not been there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    compact_ticks,
    drain,
    finish,
    last_tick,
    make_queue,
    next_batch,
    payloads,
    rotate,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


@pytest.fixture
def compacting(db: Connection, another: Another) -> Connection:
    """In a transaction that has compacted the positions of queue q and is not committed."""
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    tick(db)
    bloat_positions(db)
    other = another()
    other.execute("begin")
    assert value(other, "select pgque.maint_compact_positions()") > 0
    return other


def answer_after(
    compaction: Connection,
    waiting: Connection,
    watch: Connection,
    pool: ThreadPoolExecutor,
    sql: str,
    reads: bool = False,
) -> object:
    """What a call answers that begins during the compaction; if it writes, it ends after it."""
    answer = pool.submit(value, waiting, sql)
    if not reads:
        wait_until_blocked(watch, waiting)
    else:
        answer.result()
    compaction.execute("commit")
    return answer.result()


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("select pgque.next_batch('q', 'c') is not null", False),
        ("select batch_id is not null from pgque.claim_batch('q', 'c', 'me')", False),
        ("select count(*) from pgque.receive('q', 'c')", False),
        ("select count(*) from pgque.get_consumer_info('q', 'c')", True),
        ("select count(*) from pgque.get_consumer_info()", True),
    ],
)
def test_a_consumer_is_served(
    db: Connection,
    another: Another,
    compacting: Connection,
    background: ThreadPoolExecutor,
    call: str,
    reads: bool,
) -> None:
    assert answer_after(compacting, db, another(), background, call, reads) == 1


@pytest.mark.parametrize(
    ("call", "answer", "reads"),
    [
        ("select count(*) from pgque.get_batch_events(1)", 1, True),
        ("select sum(batch_events) from pgque.batch_read_plan(1, 2)", 1, True),
        ("select queue_name from pgque.get_batch_info(1)", "q", True),
        ("select pgque.finish_batch(1)", 1, False),
    ],
)
def test_an_open_batch_is_still_open(
    db: Connection,
    another: Another,
    background: ThreadPoolExecutor,
    call: str,
    answer: object,
    reads: bool,
) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    assert next_batch(db) == 1
    bloat_positions(db)
    compaction = another()
    compaction.execute("begin")
    value(compaction, "select pgque.maint_compact_positions()")
    assert answer_after(compaction, db, another(), background, call, reads) == answer


def test_a_rotation_meanwhile_truncates_nothing_that_a_consumer_needs(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    send(db, "needed")
    rotate(db)
    rotate(db)
    tick(db)
    bloat_positions(db)
    compaction = another()
    compaction.execute("begin")
    value(compaction, "select pgque.maint_compact_positions()")
    rotated = answer_after(
        compaction, db, another(), background, "select pgque.maint_rotate_tables_step1('q')", True
    )
    # The table of the needed event stays; rotation takes the other one, which is empty.
    assert (rotated, drain(db)) == (1, ["needed"])


def test_a_compaction_of_ticks_meanwhile_keeps_what_a_consumer_needs(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db)
    start = last_tick(db)
    bloat_ticks(db)
    bloat_positions(db)
    compaction = another()
    compaction.execute("begin")
    value(compaction, "select pgque.maint_compact_positions()")
    answer_after(compaction, db, another(), background, "select pgque.maint_compact_ticks()", True)
    assert value(db, "select min(tick_id) from pgque.tick") == start


def test_a_ticker_that_waited_goes_on_from_the_last_tick(
    db: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    make_queue(db, consumers=(), ticker_idle_period="0")
    bloat_ticks(db)
    newest = last_tick(db)
    compaction = another()
    compaction.execute("begin")
    assert compact_ticks(compaction) > 0
    made = answer_after(compaction, db, another(), background, "select pgque.ticker()")
    assert (made, last_tick(db)) == (1, newest + 1)


def test_a_batch_opened_before_a_compaction_is_finished_after_it(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    batch = next_batch(db)
    read = payloads(db, batch)
    bloat_positions(db)
    value(another(), "select pgque.maint_compact_positions()")
    finish(db, batch)
    assert (read, next_batch(db)) == (["a"], None)
