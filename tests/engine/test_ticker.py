"""When a queue ticks."""

import pytest

from tests.support.queues import (
    Another,
    Connection,
    drain,
    last_tick,
    make_queue,
    received,
    rows,
    send,
    value,
)

NEVER = {
    "ticker_max_count": "1000000",
    "ticker_max_lag": "1 day",
    "ticker_idle_period": "1 day",
}


def ticker(db: Connection) -> int:
    """How many queues ticked."""
    count: int = value(db, "select pgque.ticker()")
    return count


def test_a_queue_ticks_at_its_first_event_and_then_at_enough_new_ones(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_count": "3"})
    made = [ticker(db)]
    for texts in ("a", "bc", "d", "ef", "g"):
        send(db, *texts)
        made.append(ticker(db))
    assert made == [0, 1, 0, 1, 0, 1]


def test_one_event_is_enough_when_it_has_waited_for_the_lag(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_max_lag": "0"})
    assert ticker(db) == 0
    for text in "ab":
        send(db, text)
        assert ticker(db) == 1


def test_an_idle_queue_ticks_after_its_idle_period(db: Connection) -> None:
    make_queue(db, **NEVER | {"ticker_idle_period": "0"})
    assert ticker(db) == 1


@pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
def test_a_queue_that_is_off_ticks_when_it_is_on_again(db: Connection, switch: str) -> None:
    make_queue(db, ticker_max_count="1", ticker_idle_period="0", **{switch: "true"})
    send(db, "a", "b")
    assert ticker(db) == 0
    value(db, "select pgque.set_queue_config('q', %s, 'false')", switch)
    assert received(db) == ["a", "b"]


def test_a_forced_tick_comes_once_at_the_next_run_of_its_queue(db: Connection) -> None:
    for queue in ("forced", "other", "third"):
        make_queue(db, queue, **NEVER)
    for queue in ("forced", "forced", "other"):
        value(db, "select pgque.force_next_tick(%s)", queue)
    assert value(db, "select pgque.ticker('forced')") == last_tick(db, "forced") == 2
    assert [last_tick(db, queue) for queue in ("other", "third")] == [1, 1]
    assert value(db, "select pgque.ticker('forced')") is None
    assert (ticker(db), last_tick(db, "other")) == (1, 2)
    assert ticker(db) == 0


def test_all_queues_that_are_due_tick_in_one_call(db: Connection) -> None:
    for number in range(20):
        make_queue(db, f"q{number}", ticker_idle_period="0")
    assert ticker(db) == 20


@pytest.mark.parametrize("queue", ["q", "x" * 57, "it's; ünï"])
@pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker(%s)"])
def test_listeners_of_the_queue_hear_each_tick(db: Connection, queue: str, call: str) -> None:
    make_queue(db, queue, ticker_idle_period="0")
    db.execute('listen "{}"'.format(f"pgque_{queue}".replace('"', '""')).encode())
    db.execute(f"select {call}".encode(), [queue] if "%s" in call else None)
    heard = [(note.channel, note.payload) for note in db.notifies(timeout=5, stop_after=1)]
    assert heard == [(f"pgque_{queue}", "2")]


def test_ticker_loop_commits_each_tick_by_itself_until_its_slot_is_over(db: Connection) -> None:
    make_queue(db, ticker_idle_period="0")
    db.execute("update pgque.config set tick_period_ms = 1, ticker_slot = '200 ms'")
    db.execute("call pgque.ticker_loop()")
    assert last_tick(db) > 3
    counts = "count(*), count(distinct xmin::text)"
    ((ticks, transactions),) = rows(db, f"select {counts} from pgque.tick_log where tick_id > 1")
    assert ticks == transactions


def test_a_drop_that_is_not_committed_holds_up_no_other(db: Connection, another: Another) -> None:
    for queue in ("going", "staying"):
        make_queue(db, queue, **NEVER)
        send(db, "a", queue=queue)
        value(db, "select pgque.force_next_tick(%s)", queue)
    with another().transaction(force_rollback=True) as dropping:
        value(dropping.connection, "select pgque.drop_queue('going', true)")
        assert ticker(db) == 1
    assert drain(db, "staying") == ["a"]
    assert (ticker(db), drain(db, "going")) == (1, ["a"])
