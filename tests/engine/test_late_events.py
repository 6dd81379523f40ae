"""Events whose transaction was still running at a tick come with one soon after their commit."""

from collections.abc import Callable

import pytest

from tests.support.queues import (
    Connection,
    drain,
    last_tick,
    make_queue,
    queue_id,
    refused,
    rows,
    send,
    value,
)

Another = Callable[[], Connection]

# Only the lag makes a tick: the idle period is for ever, and no count is reached.
QUIET = {
    "ticker_max_count": "1000000",
    "ticker_max_lag": "0",
    "ticker_idle_period": "1 day",
}
SENDING = {
    "send": "select pgque.send('q', 'late')",
    "send_batch": "select pgque.send_batch('q', array['late'])",
    "send_idem": "select pgque.send_idem('q', 't', 'late'::text, 'key')",
    "insert": "insert into {table} (ev_type, ev_data) values ('t', 'late')",
}


def ticker(db: Connection) -> int:
    count: int = value(db, "select pgque.ticker()")
    return count


def begin(db: Connection, statement: str = SENDING["send"]) -> None:
    table = value(db, "select pgque.current_event_table('q')")
    db.execute("begin")
    db.execute(statement.format(table=table).encode())


@pytest.mark.parametrize("way", SENDING)
def test_an_event_left_behind_comes_after_its_commit(
    db: Connection, another: Another, way: str
) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer, SENDING[way])
    ticker(db)
    before = drain(db)
    producer.execute("commit")
    ticker(db)
    assert (before, drain(db)) == ([], ["late"])


def test_it_comes_after_any_number_of_ticks(db: Connection, another: Another) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer)
    for _ in range(5):
        ticker(db)
    producer.execute("commit")
    ticker(db)
    assert drain(db) == ["late"]


def test_it_comes_after_ticks_that_others_made_due(db: Connection, another: Another) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer)
    for text in ("a", "b"):
        send(db, text)
        ticker(db)
    producer.execute("commit")
    ticker(db)
    assert drain(db) == ["a", "b", "late"]


def test_an_event_of_a_prepared_transaction_comes_after_its_commit(
    db: Connection, another: Another
) -> None:
    if value(db, "show max_prepared_transactions") == "0":
        pytest.skip("this server takes no prepared transactions")
    make_queue(db, **QUIET)
    begin(db)
    db.execute("prepare transaction 'late'")
    ticker(db)
    db.execute("commit prepared 'late'")
    ticker(db)
    assert drain(db) == ["late"]


def test_an_event_of_the_transaction_that_ticks_comes_after_its_commit(db: Connection) -> None:
    make_queue(db, **QUIET)
    begin(db)
    ticker(db)
    db.execute("commit")
    ticker(db)
    assert drain(db) == ["late"]


def test_a_ticker_with_an_old_snapshot_leaves_nothing_for_the_idle_period(
    db: Connection, another: Another
) -> None:
    make_queue(db, **QUIET)
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from pgque.queue")
    send(db, "late")
    ticker(old)
    old.execute("commit")
    ticker(db)
    assert drain(db) == ["late"]


def test_it_waits_no_longer_than_the_lag_and_not_less(db: Connection, another: Another) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer)
    ticker(db)
    producer.execute("commit")
    value(db, "select pgque.set_queue_config('q', 'ticker_max_lag', '1 hour')")
    assert ticker(db) == 0


def test_a_tick_that_left_nothing_is_followed_by_none(db: Connection) -> None:
    make_queue(db, **QUIET)
    send(db, "a")
    assert [ticker(db), ticker(db), ticker(db)] == [1, 0, 0]


def test_the_queue_is_quiet_again_once_the_event_came(db: Connection, another: Another) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer)
    ticker(db)
    producer.execute("commit")
    assert [ticker(db), ticker(db), ticker(db)] == [1, 0, 0]


def test_a_transaction_on_another_queue_makes_no_tick(db: Connection, another: Another) -> None:
    make_queue(db, **QUIET)
    make_queue(db, "other", **QUIET)
    producer = another()
    producer.execute("begin")
    send(producer, "elsewhere", queue="other")
    send(db, "here")
    ticker(db)
    ticks = last_tick(db)
    ticker(db)
    producer.execute("commit")
    assert last_tick(db) == ticks


def test_a_reader_of_statistics_in_an_open_transaction_makes_no_ticks(
    db: Connection, another: Another
) -> None:
    make_queue(db, **QUIET)
    reader = another()
    reader.execute("begin")
    rows(reader, "select * from pgque.get_queue_info('q')")
    rows(reader, "select * from pgque.queue_stats()")
    send(db, "a")
    ticker(db)
    ticker(db)
    assert ticker(db) == 0


def test_one_queue_ticked_by_name_leaves_nothing_behind_either(
    db: Connection, another: Another
) -> None:
    make_queue(db, **QUIET)
    producer = another()
    begin(producer)
    value(db, "select pgque.ticker('q')")
    producer.execute("commit")
    value(db, "select pgque.ticker('q')")
    assert drain(db) == ["late"]


def test_a_queue_with_steady_late_events_rewrites_nothing_at_each_tick(
    db: Connection, another: Another
) -> None:
    """What is noted of a queue changes when it becomes quiet, not with every tick."""
    make_queue(db, **QUIET)
    producer = another()
    noted = set()
    for _ in range(5):
        begin(producer)
        send(db, "a")
        ticker(db)
        noted.add(value(db, "select xmin::text from pgque.tick_state"))
        begin_next = another()
        begin(begin_next)
        producer.execute("commit")
        producer = begin_next
    producer.execute("commit")
    assert len(noted) == 1


def test_the_note_goes_with_its_queue(db: Connection) -> None:
    make_queue(db, consumers=())
    number = queue_id(db)
    value(db, "select pgque.drop_queue('q')")
    assert rows(db, "select from pgque.tick_state where queue_id = %s", number) == []
    with refused("PQ001"):
        value(db, "select pgque.ticker('q')")
