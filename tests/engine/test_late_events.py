"""Events whose transaction was still running at a tick come with one soon after their commit."""

from collections.abc import Callable

import pytest

from tests.support.queues.sql import Connection, refused

Begin = Callable[..., Connection]
# Only the lag makes a tick: the idle period is for ever, and no count is reached.
QUIET = {
    "ticker_max_count": "1000000",
    "ticker_max_lag": "0",
    "ticker_idle_period": "1 day",
}


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue(**QUIET)


@pytest.fixture(params=["busy", "not busy"])
def load(request: pytest.FixtureRequest, db: Connection) -> str:
    """Whether the queue's last tick is always recent, or long ago."""
    if request.param == "not busy":
        db.execute(
            "create function age() returns trigger language plpgsql as $$ begin"
            " new.tick_time := new.tick_time - interval '1 hour'; return new; end $$"
        )
        db.execute(
            "create trigger age before insert on pgque.tick_log_0"
            " for each row execute function age()"
        )
        db.execute("update pgque.tick_log set tick_time = tick_time - interval '1 hour'")
    return request.param


@pytest.fixture
def begin(db: Connection) -> Begin:
    """Sends an event in a transaction that stays open."""

    def begin(statement: str = "select pgque.send('q', 'late')") -> Connection:
        producer = db.another()
        table = producer.value("select pgque.current_event_table('q')")
        producer.execute("begin")
        producer.execute(statement.format(table=table).encode())
        return producer

    return begin


def ticker(db: Connection) -> int:
    return db.value("select pgque.ticker()")


@pytest.mark.usefixtures("load")
def test_an_event_left_behind_comes_after_its_commit_and_then_the_queue_is_quiet(
    db: Connection, begin: Begin
) -> None:
    for way in (
        "select pgque.send('q', 'late')",
        "select pgque.send_batch('q', array['late'])",
        "select pgque.send_idem('q', 't', 'late'::text, 'key')",
        "insert into {table} (ev_type, ev_data) values ('t', 'late')",
    ):
        producer = begin(way)
        ticker(db)
        assert db.drain() == []
        producer.execute("commit")
        assert [ticker(db), ticker(db), ticker(db)] == [1, 0, 0]
        assert db.drain() == ["late"]


@pytest.mark.usefixtures("load")
def test_it_comes_from_a_prepared_transaction(db: Connection) -> None:
    db.execute("begin")
    db.send("prepared")
    db.execute("prepare transaction 'late'")
    ticker(db)
    ticker(db)  # the first one without new events looks for the transaction
    db.execute("commit prepared 'late'")
    ticker(db)
    assert db.drain() == ["prepared"]


@pytest.mark.usefixtures("load")
def test_it_comes_from_a_statement_that_has_its_id_and_no_transaction_id_yet(
    db: Connection,
) -> None:
    db.send("first")  # nextval() takes a transaction id once in 32 calls
    ticker(db)
    assert db.drain() == ["first"]
    db.execute("select pg_advisory_lock(1)")

    def send_late(producer: Connection) -> None:
        producer.execute(
            "do $$ declare v_id bigint := nextval('pgque.event_1_id_seq'); begin"
            " perform pg_advisory_xact_lock(1);"
            " perform pgque.insert_event_raw('q', v_id, null, null, null, 't', 'late',"
            " null, null, null, null); end $$"
        )

    sending = db.blocked(send_late)
    ticker(db)
    ticker(db)
    db.execute("select pg_advisory_unlock(1)")
    sending.result()
    assert [ticker(db), ticker(db)] == [1, 0]
    assert db.drain() == ["late"]


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize("load", ["not busy"], indirect=True)
def test_it_comes_if_its_id_was_drawn_after_the_ticker_looked(db: Connection, begin: Begin) -> None:
    db.execute("alter function pgque.seqs_in_use() rename to looked")
    db.execute(
        "create function pgque.seqs_in_use() returns oid[] language plpgsql as $$"
        " declare v_found oid[] := pgque.looked(); begin"
        " perform pg_advisory_xact_lock(1); return v_found; end $$"
    )
    db.send("first")
    db.execute("select pg_advisory_lock(1)")
    ticking = db.blocked(ticker)
    producer = begin()
    db.execute("select pg_advisory_unlock(1)")
    assert ticking.result() == 1
    producer.execute("commit")
    assert ticker(db) == 1
    assert db.drain() == ["first", "late"]


@pytest.mark.usefixtures("load")
def test_it_comes_although_the_ticker_has_looked_at_the_activity_before(
    db: Connection, begin: Begin
) -> None:
    with db.transaction():
        db.value("select count(*) from pg_stat_activity")
        producer = begin()
        ticker(db)
    producer.execute("commit")
    ticker(db)
    assert db.drain() == ["late"]


def test_it_comes_from_two_transactions_that_began_before_and_after_a_rotation(
    db: Connection,
) -> None:
    """Each wrote into another table."""
    before, after = db.another(), db.another()
    db.rotate()
    before.execute("begin")
    before.send("before")
    assert db.rotate() == 1
    after.execute("begin")
    after.send("after")
    db.tick()
    db.drain()
    before.execute("commit")
    after.execute("commit")
    db.tick()
    batch = db.next_batch()
    sql = db.value("select pgque.batch_event_sql(%s)", batch)
    assert [row[5] for row in db.rows(sql)] == ["before", "after"]


@pytest.mark.usefixtures("load")
def test_it_comes_from_after_the_snapshot_of_the_ticker(db: Connection) -> None:
    old = db.another().hold_snapshot()
    db.send("late")
    assert ticker(old) == 1
    old.commit()
    assert ticker(db) == 1
    assert db.drain() == ["late"]


def test_a_tick_that_left_nothing_is_followed_by_one_at_most_whatever_others_have_open(
    db: Connection, load: str
) -> None:
    # On a slow machine, the last tick of a busy queue may be long ago as well.
    counts = [[1, 0, 0], [1, 1, 0]] if load == "busy" else [[1, 0, 0]]
    db.send("a")
    assert [ticker(db), ticker(db), ticker(db)] in counts
    reader = db.another()
    reader.execute("begin")
    reader.rows("select * from pgque.get_queue_info('q')")
    reader.rows("select * from pgque.queue_stats()")
    dump = db.another().hold_snapshot()
    dump.rows("select last_value from pgque.event_1_id_seq")
    db.send("b")
    assert [ticker(db), ticker(db), ticker(db)] in counts
    reader.execute("commit")

    db.make_queue("other", **QUIET)
    producer = db.another()
    producer.execute("begin")
    producer.send("elsewhere", queue="other")
    db.send("here")
    tick_here = "select (pgque.ticker('q') is not null)::integer"
    assert [db.value(tick_here) for _ in range(3)] in counts
    producer.execute("commit")
    assert db.value(tick_here) == 0


@pytest.mark.usefixtures("load")
def test_a_tick_without_new_events_is_followed_by_none(db: Connection) -> None:
    db.tick()
    assert ticker(db) == 0


def test_a_queue_that_is_ticked_often_never_reads_the_table_of_locks(
    db: Connection, begin: Begin
) -> None:
    begin("select pgque.send('q', 'late')")
    ticker(db)
    db.execute("drop function pgque.seqs_in_use()")
    for _ in range(5):
        db.send("a")
        assert ticker(db) == 1
    with refused("42883", "seqs_in_use"):
        ticker(db)


def test_ticks_change_no_row(db: Connection, begin: Begin) -> None:
    """Also those of a queue that becomes quiet, and is not any more, again and again."""
    producer = begin("select pgque.send('q', 'late')")
    for _ in range(3):
        db.send("a")
        assert ticker(db) == 1
        assert ticker(db) == 1
    producer.execute("commit")
    db.execute("select pg_stat_force_next_flush()")
    changed = """
    select relname::text, n_tup_upd, n_tup_del from pg_stat_user_tables
    where schemaname = 'pgque' and relname like 'tick%' and n_tup_upd + n_tup_del > 0
    """
    assert db.rows(changed) == []


def test_what_a_ticker_locks_goes_with_its_queue(db: Connection) -> None:
    number = db.queue_id()
    db.value("select pgque.drop_queue('q', true)")
    assert db.rows("select from pgque.tick_state where queue_id = %s", number) == []
    with refused("PQ001"):
        db.value("select pgque.ticker('q')")
