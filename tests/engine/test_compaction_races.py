"""What meets a compaction in READ COMMITTED goes on as if it had not been there."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
)
from tests.support.races import Another, race


def compact(db: Connection) -> int:
    dropped: int = value(db, "select pgque.maint_compact_positions()")
    return dropped


def answer_during(
    another: Another, sql: str, *, reads: bool = False, compact: Any = compact
) -> object:
    """What a call answers that begins during a compaction; if it writes, it ends after it."""
    if not reads:
        done, answer = race(another, compact, lambda db: value(db, sql))
        assert done > 0
        return answer.result()
    compacting = another()
    with compacting.transaction(), ThreadPoolExecutor(1) as pool:
        assert compact(compacting) > 0
        return pool.submit(value, another(), sql).result()


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
def test_a_consumer_is_served(db: Connection, another: Another, call: str, reads: bool) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    tick(db)
    bloat_positions(db)
    assert answer_during(another, call, reads=reads) == 1


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
    db: Connection, another: Another, call: str, answer: object, reads: bool
) -> None:
    make_queue(db)
    send(db, "a")
    tick(db)
    assert next_batch(db) == 1
    bloat_positions(db)
    assert answer_during(another, call, reads=reads) == answer


def test_a_rotation_meanwhile_truncates_nothing_that_a_consumer_needs(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    send(db, "needed")
    rotate(db)
    rotate(db)
    tick(db)
    bloat_positions(db)
    rotate_again = "select pgque.maint_rotate_tables_step1('q')"
    # The table of the needed event stays; rotation takes the other one, which is empty.
    assert (answer_during(another, rotate_again, reads=True), drain(db)) == (1, ["needed"])


def test_a_compaction_of_ticks_meanwhile_keeps_what_a_consumer_needs(
    db: Connection, another: Another
) -> None:
    make_queue(db)
    start = last_tick(db)
    bloat_ticks(db)
    bloat_positions(db)
    answer_during(another, "select pgque.maint_compact_ticks()", reads=True)
    assert value(db, "select min(tick_id) from pgque.tick") == start


def test_a_ticker_that_waited_goes_on_from_the_last_tick(db: Connection, another: Another) -> None:
    make_queue(db, consumers=(), ticker_idle_period="0")
    bloat_ticks(db)
    newest = last_tick(db)
    made = answer_during(another, "select pgque.ticker()", compact=compact_ticks)
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
    assert compact(another()) > 0
    finish(db, batch)
    assert (read, next_batch(db)) == (["a"], None)
