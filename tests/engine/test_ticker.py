"""When a queue ticks, tickers in transactions of all kinds, and schedulers with strict defaults."""

from collections.abc import Iterator

import psycopg
import pytest

from pgque_dagster.client import Client
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.logins import as_login

NEVER = {
    "ticker_max_count": "1000000",
    "ticker_max_lag": "1 day",
    "ticker_idle_period": "1 day",
}


def ticker(db: Connection) -> int:
    """How many queues ticked."""
    count: int = db.value("select pgque.ticker()")
    return count


def test_a_queue_ticks_at_its_first_event_and_then_at_enough_new_ones(db: Connection) -> None:
    db.make_queue(**NEVER | {"ticker_max_count": "3"})
    made = [ticker(db)]
    for texts in ("a", "bc", "d", "ef", "g"):
        db.send(*texts)
        made.append(ticker(db))
    assert made == [0, 1, 0, 1, 0, 1]


def test_one_event_is_enough_when_it_has_waited_for_the_lag(db: Connection) -> None:
    db.make_queue(**NEVER | {"ticker_max_lag": "0"})
    assert ticker(db) == 0
    for text in "ab":
        db.send(text)
        assert ticker(db) == 1


def test_an_idle_queue_ticks_after_its_idle_period(db: Connection) -> None:
    db.make_queue(**NEVER | {"ticker_idle_period": "0"})
    assert ticker(db) == 1


def test_a_clock_that_was_set_back_stops_neither_ticks_nor_rotation(db: Connection) -> None:
    db.make_queue(ticker_max_lag="1 hour", ticker_idle_period="1 hour", rotation_period="1 hour")
    assert ticker(db) == 0
    db.value("select pgque.maint_rotate_tables_step2()")
    db.execute("update pgque.tick_log set tick_time = tick_time + interval '1 day'")
    db.execute("update pgque.queue set queue_switch_time = now() + interval '1 day'")
    assert [ticker(db), ticker(db)] == [1, 0]
    db.value("select pgque.maint_rotate_tables_step1('q')")
    assert rotations(db) == 1


@pytest.mark.parametrize("switch", ["ticker_paused", "external_ticker"])
def test_a_queue_that_is_off_ticks_when_it_is_on_again(db: Connection, switch: str) -> None:
    db.make_queue(ticker_max_count="1", ticker_idle_period="0", **{switch: "true"})
    db.send("a", "b")
    assert ticker(db) == 0
    db.value("select pgque.set_queue_config('q', %s, 'false')", switch)
    assert db.received() == ["a", "b"]


def test_a_forced_tick_comes_once_at_the_next_run_of_its_queue(db: Connection) -> None:
    for queue in ("forced", "other", "third"):
        db.make_queue(queue, **NEVER)
    for queue in ("forced", "forced", "other"):
        db.value("select pgque.force_next_tick(%s)", queue)
    assert db.value("select pgque.ticker('forced')") == db.last_tick("forced") == 2
    assert [db.last_tick(queue) for queue in ("other", "third")] == [1, 1]
    assert db.value("select pgque.ticker('forced')") is None
    assert (ticker(db), db.last_tick("other")) == (1, 2)
    assert ticker(db) == 0


def test_a_tick_keeps_the_request_for_one_that_came_after_it(db: Connection) -> None:
    db.make_queue(**NEVER)
    db.execute(
        "create function wait() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_xact_lock(1); return new; end $$"
    )
    db.execute(
        "create trigger wait before insert on pgque.tick_log_0 for each row execute function wait()"
    )
    db.value("select pgque.force_next_tick('q')")
    db.execute("select pg_advisory_lock(1)")
    ticking = db.blocked(ticker)
    db.value("select pgque.force_next_tick('q')")
    db.execute("select pg_advisory_unlock(1)")
    assert [ticking.result(), ticker(db), ticker(db)] == [1, 1, 0]


def test_listeners_of_the_queue_hear_each_tick(db: Connection) -> None:
    for queue in ("x" * 57, "it's; ünï"):
        db.make_queue(queue, ticker_idle_period="0")
        db.execute(f'listen "pgque_{queue}"'.encode())
        db.value("select pgque.ticker(%s)", queue)
    db.value("select pgque.ticker()")
    heard = {(note.channel, note.payload) for note in db.notifies(timeout=5, stop_after=4)}
    assert heard == {(f"pgque_{each}", tick) for each in ("x" * 57, "it's; ünï") for tick in "23"}


def test_ticker_loop_commits_each_tick_by_itself_until_its_slot_is_over(db: Connection) -> None:
    db.make_queue(ticker_idle_period="0")
    db.execute("update pgque.config set tick_period_ms = 1, ticker_slot = '200 ms'")
    db.execute("call pgque.ticker_loop()")
    assert db.last_tick() > 3
    counts = "count(*), count(distinct xmin::text)"
    ((ticks, transactions),) = db.rows(f"select {counts} from pgque.tick_log where tick_id > 1")
    assert ticks == transactions


def test_a_drop_that_is_not_committed_holds_up_no_other(db: Connection) -> None:
    for queue in ("going", "staying"):
        db.make_queue(queue, **NEVER)
        db.send("a", queue=queue)
        db.value("select pgque.force_next_tick(%s)", queue)
    dropping = db.another()
    with dropping.transaction(force_rollback=True):
        dropping.value("select pgque.drop_queue('going', true)")
        assert ticker(db) == 1
    assert db.drain("staying") == ["a"]
    assert (ticker(db), db.drain("going")) == (1, ["a"])


DUE = {"ticker_idle_period": "0"}
CALLS = pytest.mark.parametrize("call", ["pgque.ticker()", "pgque.ticker('q')"])


@pytest.fixture
def due(db: Connection) -> Connection:
    """A queue that ticks whenever it is asked."""
    db.make_queue(**DUE)
    return db


@CALLS
def test_events_of_who_ticks_arrive_once(due: Connection, call: str) -> None:
    other = due.another()
    with due.transaction():
        due.send("A")
        other.send("between")  # a later transaction that ends first
        due.value(f"select {call}")
        other.send("meanwhile")
        due.send("B")
    other.send("other")
    assert sorted(due.received()) == ["A", "B", "between", "meanwhile", "other"]


def test_a_ticker_with_an_old_snapshot_loses_nothing(due: Connection) -> None:
    old = due.another().hold_snapshot()
    due.send("after the snapshot")
    old.value("select pgque.ticker()")
    old.send("of the ticker")
    old.commit()
    assert due.drain() == []
    old.hold_snapshot()
    assert due.received() == ["after the snapshot", "of the ticker"]
    with pytest.raises(psycopg.errors.SerializationFailure):
        old.value("select pgque.ticker()")
    old.rollback()
    assert due.received() == []


def test_a_ticker_in_an_open_transaction_blocks_nobody(due: Connection) -> None:
    """Neither rivals, who make no second tick, nor other queues, rotation or settings."""
    stuck = due.another()
    due.execute("set lock_timeout = '1 s'")
    with stuck.transaction():
        assert stuck.value("select pgque.ticker()") == 1
        assert due.value("select pgque.ticker('q')") is None
        assert due.value("select pgque.ticker()") == 0
        due.make_queue("free", **DUE)
        assert due.value("select pgque.ticker()") == 1
        due.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        assert due.value("select pgque.maint_rotate_tables_step1('q')") == 1
    assert due.last_tick() == 2


def test_a_ticker_that_had_nothing_to_do_holds_no_queue(q: Connection) -> None:
    idle = q.another()
    with idle.transaction():
        idle.value("select pgque.ticker('q')")
        idle.value("select pgque.ticker()")
        assert q.tick() == 2


class TestLocks:
    """Nobody without a right on the queue can keep it from being ticked."""

    @pytest.fixture
    def stranger(self, database_url: str) -> Iterator[Connection]:
        """A login that was granted nothing."""
        with connect(as_login(database_url)) as connection:
            yield connection

    @CALLS
    def test_a_stranger_cannot_stop_the_ticks(
        self, due: Connection, stranger: Connection, call: str
    ) -> None:
        """A ticker takes none; he takes all that one could guess."""
        ticking = due.another()
        with ticking.transaction():
            ticking.value(f"select {call}")
            held = "select from pg_locks where locktype = 'advisory'"
            assert ticking.rows(f"{held} and pid = pg_backend_pid()") == []
        tables = stranger.rows(
            "select c.oid::bigint::integer from pg_class c join pg_namespace n"
            " on n.oid = c.relnamespace where n.nspname = 'pgque' and c.relkind in ('r', 'S')",
        )
        for (table,) in tables:
            stranger.execute("select pg_advisory_lock(%s::integer, 1)", [table])
        due.send("a")
        due.value(f"select {call}")
        assert due.drain() == ["a"]


@pytest.fixture
def loaded(db: Connection) -> Connection:
    """A queue with an event, which rotates whenever it is asked."""
    db.make_queue(rotation_period="1 microsecond", ticker_idle_period="0")
    db.send("a")
    return db


def be_strict(db: Connection, level: str) -> None:
    db.execute(f"set default_transaction_isolation = '{level}'".encode())


def rotations(db: Connection) -> int:
    number: int = db.value("select queue_cur_table from pgque.queue")
    return number


def test_loops_work_whatever_the_sessions_isolation(loaded: Connection) -> None:
    be_strict(loaded, "serializable")
    loaded.execute("update pgque.config set tick_period_ms = 1")
    loaded.execute("call pgque.ticker_loop('100 ms')")
    assert loaded.drain() == ["a"]
    loaded.execute("call pgque.maint_loop('0')")
    assert rotations(loaded) == 1
    # While a snapshot keeps a log on its second half, there is a round each second.
    reader = loaded.another().hold_snapshot()
    assert loaded.another().compact_positions() > 0
    loaded.execute("call pgque.maint_loop('1200 ms')")
    reader.rollback()


def test_the_hint_of_maint_can_be_followed(loaded: Connection) -> None:
    be_strict(loaded, "repeatable read")
    with refused("PQ013", "begin isolation level read committed;", "alter role postgres set"):
        loaded.value("select pgque.maint()")
    loaded.execute("begin isolation level read committed")
    loaded.value("select pgque.maint()")
    loaded.execute("commit")
    assert rotations(loaded) == 1


def test_the_client_maintains_in_any_isolation(loaded: Connection, database_url: str) -> None:
    name = loaded.value("select current_database()")
    loaded.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    with Client(database_url) as client:
        client.maint()
    assert rotations(loaded) == 1


def test_what_maint_loop_did_before_the_timeout_counts(loaded: Connection) -> None:
    loaded.execute("set statement_timeout = '1200 ms'")
    with refused("57014", "statement timeout"):
        loaded.execute("call pgque.maint_loop('20 s')")
    assert rotations(loaded.another()) == 1
