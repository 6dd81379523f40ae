"""What meets a compaction in READ COMMITTED goes on as if it had not been there."""

from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    compact_ticks,
    last_tick,
    make_queue,
    send,
    tick,
    value,
)
from tests.support.races import Another, race


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


def test_a_ticker_that_waited_goes_on_from_the_last_tick(db: Connection, another: Another) -> None:
    make_queue(db, consumers=(), ticker_idle_period="0")
    bloat_ticks(db)
    newest = last_tick(db)
    made = answer_during(another, "select pgque.ticker()", compact=compact_ticks)
    assert (made, last_tick(db)) == (1, newest + 1)
