"""What meets a compaction in READ COMMITTED goes on as if it had not been there."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.queues.halves import catch_up
from tests.support.queues.races import draw_next, race
from tests.support.queues.sql import Connection


def compact(db: Connection) -> int:
    dropped: int = db.value("select pgque.maint_compact_positions()")
    return dropped


def answer_during(db: Connection, sql: str, *, compact: Any = compact) -> object:
    """What a call answers that begins during a compaction and ends after it."""
    done, answer = race(db, compact, lambda db: db.value(sql))
    assert done > 0
    return answer.result()


@pytest.mark.parametrize(
    "call",
    [
        "select pgque.next_batch('q', 'c') is not null",
        "select batch_id is not null from pgque.claim_batch('q', 'c', 'me')",
    ],
)
def test_a_consumer_is_served(db: Connection, call: str) -> None:
    db.make_queue(rotation_period="1 microsecond")
    db.publish("a")
    db.bloat_positions()
    assert answer_during(db, call) == 1


def test_a_consumer_that_rotation_holds_up_meets_no_deadlock(db: Connection) -> None:
    """A transaction that rotates and compacts, as `maint` does, at its longest wait for a lock."""
    db.make_queue(rotation_period="1 microsecond")
    db.publish("a")
    db.bloat_positions()
    consumer, maintenance, watch = db.another(), db.another(), db.another()
    draw_next(maintenance, 0, 0.01)
    with ThreadPoolExecutor(1) as pool:
        consumer.execute("begin")
        batch = consumer.value("select pgque.next_batch('q', 'c')")
        maintenance.execute("begin")
        assert maintenance.value("select pgque.maint_rotate_tables_step1('q')") == 1
        reading = pool.submit(
            Connection.rows, consumer, "select * from pgque.get_batch_events(%s)", batch
        )
        watch.wait_until_blocked(consumer)
        assert compact(maintenance) == 0
        maintenance.execute("commit")
        assert len(reading.result()) == 1


def test_a_ticker_that_waited_goes_on_from_the_last_tick(db: Connection) -> None:
    db.make_queue(consumers=(), ticker_idle_period="0")
    db.bloat_ticks()
    newest = db.last_tick()
    made = answer_during(db, "select pgque.ticker()", compact=Connection.compact_ticks)
    assert (made, db.last_tick()) == (1, newest + 1)


@pytest.fixture
def bloated(db: Connection) -> Connection:
    """Both logs hold more than is needed."""
    db.make_queue(consumers=("c", "slow"))
    db.bloat_ticks(2100)
    catch_up(db, "c", "slow")
    db.publish("a")
    db.bloat_positions()
    return db


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("maint_copy_ticks()", "maint_empty_half('tick')"),
        ("maint_compact_ticks()", "maint_compact_ticks()"),
    ],
)
def test_a_rival_changes_nothing_at_its_longest_wait(
    bloated: Connection, background: ThreadPoolExecutor, first: str, second: str
) -> None:
    rival = bloated.another()
    draw_next(rival, 0, 0.01)
    if first == second:
        bloated.value("select pgque.maint_copy_ticks()")
    with bloated.transaction():
        assert bloated.value(f"select pgque.{first}") == 1
        answer = background.submit(Connection.value, rival, f"select pgque.{second}")
        time.sleep(0.1)
    assert answer.result() == 0


@pytest.mark.parametrize(("holds", "log"), [("next_batch", "position"), ("tick", "tick")])
def test_one_compaction_in_many_waits_for_longer_and_holds_up_no_rival(
    bloated: Connection, background: ThreadPoolExecutor, holds: str, log: str
) -> None:
    compact = f"select pgque.maint_compact_{log}s()"
    holder, first, rival = (bloated.another() for _ in range(3))
    for session in (first, rival):
        draw_next(session, 0, 0.01)
    with holder.transaction():
        getattr(holder, holds)()
        answer = background.submit(Connection.value, first, compact)
        bloated.wait_until_blocked(first)
        assert rival.value(compact) == 0
        time.sleep(0.05)
    assert answer.result() > 0
    assert bloated.drain() == ["a"]
