"""What meets a compaction in READ COMMITTED goes on as if it had not been there."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    compact_ticks,
    last_tick,
    make_queue,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)
from tests.support.races import Another, draw_next, race


def compact(db: Connection) -> int:
    dropped: int = value(db, "select pgque.maint_compact_positions()")
    return dropped


def answer_during(another: Another, sql: str, *, compact: Any = compact) -> object:
    """What a call answers that begins during a compaction and ends after it."""
    done, answer = race(another, compact, lambda db: value(db, sql))
    assert done > 0
    return answer.result()


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c') is not null",
        "select batch_id is not null from pgque.claim_batch('q', 'c', 'me')",
        "select count(*) from pgque.receive('q', 'c')",
    ],
)
def test_a_consumer_is_served(db: Connection, another: Another, call: str) -> None:
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    tick(db)
    bloat_positions(db)
    assert answer_during(another, call) == 1


def test_a_consumer_that_rotation_holds_up_meets_no_deadlock(
    db: Connection, another: Another
) -> None:
    """A transaction that rotates and compacts, as `maint` does, at its longest wait for a lock."""
    make_queue(db, rotation_period="1 microsecond")
    send(db, "a")
    tick(db)
    bloat_positions(db)
    consumer, maintenance, watch = another(), another(), another()
    draw_next(maintenance, 0, 0.01)
    with ThreadPoolExecutor(1) as pool:
        consumer.execute("begin")
        batch = value(consumer, "select pgque.next_batch('q', 'c')")
        maintenance.execute("begin")
        assert value(maintenance, "select pgque.maint_rotate_tables_step1('q')") == 1
        reading = pool.submit(rows, consumer, "select * from pgque.get_batch_events(%s)", batch)
        wait_until_blocked(watch, consumer)
        assert compact(maintenance) == 0
        maintenance.execute("commit")
        assert len(reading.result()) == 1


def test_a_ticker_that_waited_goes_on_from_the_last_tick(db: Connection, another: Another) -> None:
    make_queue(db, consumers=(), ticker_idle_period="0")
    bloat_ticks(db)
    newest = last_tick(db)
    made = answer_during(another, "select pgque.ticker()", compact=compact_ticks)
    assert (made, last_tick(db)) == (1, newest + 1)
