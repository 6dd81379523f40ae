"""docs/migrating.md, step by step, from Debian's C extension, while everything runs."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, connect
from tests.support.runner.waiting import wait_until
from tests.support.servers.databases import empty_database
from tests.support.servers.postgres import Postgres

pytestmark = pytest.mark.program("postgresql-15-pgq3")

PAGE = Path(__file__).parents[3] / "docs" / "migrating.md"
BLOCKS = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
UNREAD, CREATE, SWITCH_TRIGGERS, WHAT_IS_UNREAD, REPLACE, PRINT, DISABLE = BLOCKS
CHECK, _, _ = REPLACE.partition("select pgq.drop_queue")
CLOSE = CHECK + DISABLE + "commit;\n"

BOOKS = """
create table orders (id serial primary key, note text);
create table ledger (payload text primary key);
create table sink (consumer text, payload text);
"""
CONSUMERS = ("quick", "slow")

Step = Callable[[Connection], object]


class Runner(threading.Thread):
    """Repeats a step on a connection of its own until it is stopped."""

    def __init__(self, url: str, step: Step) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._url = url
        self._step = step
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with connect(self._url) as db:
                while not self._stopping.is_set():
                    with suppress(psycopg.errors.DeadlockDetected):  # programs try again
                        self._step(db)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        assert self.error is None, self.error


@contextmanager
def runners() -> Iterator[Callable[[str, Step], Runner]]:
    """Starts runners, and stops those that are left."""
    started: list[Runner] = []

    def start(url: str, step: Step) -> Runner:
        started.append(Runner(url, step))
        started[-1].start()
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.stop()


def ordering(numbers: Iterator[int]) -> Step:
    """Changes a table. Its trigger sends the change, to whichever queue."""

    def step(db: Connection) -> None:
        with db.transaction():
            order = db.value("insert into orders (note) values (%s) returning id", next(numbers))
            db.execute("insert into ledger values (%s)", [f"order {order}"])

    return step


def sending(schema: str, numbers: Iterator[int]) -> Step:
    """Sends events by a call."""

    def step(db: Connection) -> None:
        payload = f"{schema} {next(numbers)}"
        with db.transaction():
            db.value(f"select {schema}.insert_event('q', 't', %s)", payload)
            db.execute("insert into ledger values (%s)", [payload])

    return step


def consuming(schema: str, consumer: str) -> Step:
    """Notes events in the transaction that finishes the batch; retries some of them once."""

    def step(db: Connection) -> None:
        batch = db.value(f"select {schema}.next_batch('q', %s)", consumer)
        if batch is None:
            db.value("select pg_sleep(0.01)::text")
            return
        with db.transaction():
            events = f"select ev_id, ev_retry, ev_data from {schema}.get_batch_events(%s)"
            for ev_id, retry, data in db.rows(events, batch):
                order = re.match(r"id=(\d+)&", data)
                payload = f"order {order[1]}" if order else data
                if retry is None and payload.endswith("7"):
                    db.value(f"select {schema}.event_retry(%s, %s, 0)", batch, ev_id)
                else:
                    db.execute("insert into sink values (%s, %s)", [consumer, payload])
            db.value(f"select {schema}.finish_batch(%s)", batch)

    return step


def ticking(schema: str) -> Step:
    """Does what pgqd does."""

    def step(db: Connection) -> None:
        db.value(f"select {schema}.ticker()")
        db.value(f"select {schema}.maint_retry_events()")
        db.value("select pg_sleep(0.02)::text")

    return step


@pytest.fixture
def old_url(debian: Postgres) -> Iterator[str]:
    """A database with a queue of C PgQ, its consumers, and a table that publishes."""
    with empty_database(debian) as url:
        with connect(url) as db:
            db.execute("create extension pgq")
            db.execute(BOOKS.encode())
            db.value("select pgq.create_queue('q')")
            db.execute(
                "update pgq.queue set queue_ticker_max_lag = '0.05 s', queue_ticker_max_count = 20,"
                " queue_ticker_idle_period = '0.2 s', queue_rotation_period = '3 h'"
            )
            for consumer in CONSUMERS:
                db.value("select pgq.register_consumer('q', %s)", consumer)
            db.execute(
                "create trigger send after insert on orders"
                " for each row execute procedure pgq.logutriga('q')"
            )
            db.execute(UNREAD.encode())
        yield url


def is_finished(db: Connection) -> bool:
    return db.rows(WHAT_IS_UNREAD) == []


def check_results(*databases: Connection) -> None:
    """Each consumer noted each committed event once."""
    sent = sorted(text for db in databases for (text,) in db.rows("select payload from ledger"))
    sql = "select payload from sink where consumer = %s"
    for consumer in CONSUMERS:
        noted = sorted(text for db in databases for (text,) in db.rows(sql, consumer))
        assert noted == sent


def count_noted(db: Connection, consumer: str) -> int:
    return db.value("select count(*) from sink where consumer = %s", consumer)


def is_all_noted(*databases: Connection) -> bool:
    sent = sum(db.value("select count(*) from ledger") for db in databases)
    return all(sum(count_noted(db, each) for db in databases) >= sent for each in CONSUMERS)


def refuses(db: Connection, block: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="events are unread"):
        while True:
            with suppress(psycopg.errors.DeadlockDetected):
                db.execute(block.encode())
                return
            db.execute("rollback")
    db.execute("rollback")


def repeat(db: Connection, block: str) -> None:
    """Runs a block that the page says to repeat when it fails."""

    def is_done() -> bool:
        try:
            db.execute(block.encode())
        except (psycopg.errors.DeadlockDetected, psycopg.errors.RaiseException):
            db.execute("rollback")
            return False
        return True

    wait_until(is_done)


def test_a_queue_moves_within_its_database(old_url: str) -> None:
    numbers = count()
    with runners() as start, connect(old_url) as db, connect(old_url) as late:
        ticker = start(old_url, ticking("pgq"))
        orders = start(old_url, ordering(numbers))
        calls = start(old_url, sending("pgq", numbers))
        quick = start(old_url, consuming("pgq", "quick"))
        wait_until(lambda: count_noted(db, "quick") > 20)
        wait_until(lambda: db.value("select pgq.next_batch('q', 'slow')") is not None)

        db.execute(INSTALL_SQL.read_bytes())
        db.execute(CREATE.encode())
        with late.transaction():
            sending("pgq", numbers)(late)
            db.execute(SWITCH_TRIGGERS.encode())
            calls.stop()
            new_calls = start(old_url, sending("pgque", numbers))
        wait_until(lambda: db.value("select count(*) from pgque.event_1") > 20)
        refuses(db, REPLACE)

        slow = start(old_url, consuming("pgq", "slow"))
        wait_until(lambda: is_finished(db))
        for each in (quick, slow, ticker):
            each.stop()
        repeat(db, REPLACE)
        db.execute(addon_sql("pgq"))
        start(old_url, ticking("pgq"))
        for consumer in CONSUMERS:
            start(old_url, consuming("pgq", consumer))
        wait_until(lambda: min(count_noted(db, each) for each in CONSUMERS) > 40)
        orders.stop()
        new_calls.stop()
        wait_until(lambda: is_all_noted(db))
        check_results(db)
        found = db.rows("select queue_ticker_max_count, queue_rotation_period::text from pgq.queue")
        assert found == [(20, "03:00:00")]


def test_a_queue_moves_to_another_database(debian: Postgres, old_url: str) -> None:
    numbers = count()
    with (
        empty_database(debian) as new_url,
        connect(old_url) as db,
        connect(new_url) as new,
        runners() as start,
    ):
        new.execute(BOOKS.encode())
        start(old_url, ticking("pgq"))
        calls = start(old_url, sending("pgq", numbers))
        quick = start(old_url, consuming("pgq", "quick"))
        wait_until(lambda: count_noted(db, "quick") > 20)

        new.execute(INSTALL_SQL.read_bytes())
        new.execute(addon_sql("pgq"))
        for (command,) in db.rows(PRINT):
            new.execute(command.encode())
        start(new_url, ticking("pgq"))
        new_calls = start(new_url, sending("pgq", numbers))
        calls.stop()
        refuses(db, CLOSE)

        slow = start(old_url, consuming("pgq", "slow"))
        wait_until(lambda: is_finished(db))
        quick.stop()
        slow.stop()
        for consumer in CONSUMERS:
            start(new_url, consuming("pgq", consumer))
        repeat(db, CLOSE)
        with pytest.raises(psycopg.Error, match="disallowed"):
            sending("pgq", numbers)(db)
        wait_until(lambda: min(count_noted(new, each) for each in CONSUMERS) > 20)
        new_calls.stop()
        wait_until(lambda: is_all_noted(db, new))
        check_results(db, new)


def test_batches_of_a_pgque_in_use_keep_their_ids(debian: Postgres, old_url: str) -> None:
    ids = "select last_value from pgque.batch_id_seq"
    with connect(old_url) as db, empty_database(debian) as new_url, connect(new_url) as new:
        for each in (db, new):
            each.execute(INSTALL_SQL.read_bytes())
            each.value("select setval('pgque.batch_id_seq', 5000000)")
        db.execute(CREATE.encode())
        assert db.value(ids) > 5_000_000
        new.execute(addon_sql("pgq"))
        for (command,) in db.rows(PRINT):
            new.execute(command.encode())
        assert new.value(ids) > 5_000_000


@pytest.mark.parametrize("block", [REPLACE, CLOSE])
def test_an_event_that_commits_during_the_check_is_seen(old_url: str, block: str) -> None:
    with (
        connect(old_url) as db,
        connect(old_url) as producer,
        connect(old_url) as third,
        ThreadPoolExecutor() as pool,
    ):
        db.execute("set default_transaction_isolation = 'repeatable read'")
        producer.execute("begin")
        producer.value("select pgq.insert_event('q', 't', 'late')")
        waiting = pool.submit(refuses, db, block)
        third.wait_until_blocked(db)
        producer.execute("commit")
        waiting.result()


def test_triggers_switch_whatever_the_search_path(old_url: str) -> None:
    with connect(old_url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        db.execute(CREATE.encode())
        db.execute(
            "create table parts (id int) partition by range (id);"
            "create table part partition of parts for values from (0) to (9);"
            "create trigger send after insert on parts"
            " for each row execute procedure pgq.logutriga('q')"
        )
        db.execute("set search_path = public, pgq")
        db.execute(SWITCH_TRIGGERS.encode())
        db.execute("insert into parts values (1); insert into orders (note) values ('a')")
        assert db.value("select count(*) from pgque.event_1") == 2
        assert db.rows(WHAT_IS_UNREAD) == []


def test_a_record_of_the_old_ticks_is_forgotten(db: Connection) -> None:
    db.value("select pgq_ext.set_last_tick('c', 7)")
    (command,) = re.findall(r"`(select pgq_ext[^`]*)`", PAGE.read_text())
    db.value(command.replace("'consumer'", "'c'"))
    assert db.value("select pgq_ext.get_last_tick('c')") is None
