"""Builders and questions that tests of the queue share.

Each takes an open connection. What `connect` opens has most of them as methods, too: `db.tick()`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

PATIENCE_SECONDS = 60


def connect(url: str) -> "Connection":
    """Opens a connection on which a test that would wait for ever fails instead."""
    connection = Connection.connect(url, autocommit=True, options="-c lock_timeout=60s")
    connection.url = url
    return connection


def rows(db: "Connection", sql: str, *params: object) -> list[tuple[Any, ...]]:
    return db.execute(sql.encode(), params or None).fetchall()


def value(db: "Connection", sql: str, *params: object) -> Any:
    ((only,),) = rows(db, sql, *params)
    return only


@contextmanager
def refused(sqlstate: str, *words: str) -> Iterator[None]:
    """The block must fail with this code, and with a message that has these words."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == sqlstate, caught.value
    # Not what str() has beside them: the statement of the function that failed, with its texts.
    error = caught.value.diag
    told = "\n".join(
        filter(None, (error.message_primary, error.message_detail, error.message_hint))
    )
    for word in words:
        assert word in told


def run(db: "Connection", script: str) -> None:
    db.execute(script.encode())


def warnings_of(db: "Connection") -> list[str]:
    """What the server will warn this connection of from now on."""
    warnings: list[str] = []
    db.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
    return warnings


def make_queue(
    db: "Connection", queue: str = "q", consumers: Sequence[str] = ("c",), **config: str
) -> None:
    value(db, "select pgque.create_queue(%s)", queue)
    for parameter, setting in config.items():
        value(db, "select pgque.set_queue_config(%s, %s, %s)", queue, parameter, setting)
    for consumer in consumers:
        value(db, "select pgque.register_consumer(%s, %s)", queue, consumer)


def make_again(db: "Connection", **config: str) -> None:
    """Drops the queue q, and makes it again."""
    value(db, "select pgque.drop_queue('q', true)")
    make_queue(db, **config)


def queue_id(db: "Connection", queue: str = "q") -> int:
    return value(db, "select queue_id from pgque.queue where queue_name = %s", queue)


def send(db: "Connection", *payloads: str, queue: str = "q") -> list[int]:
    return [value(db, "select pgque.send(%s, %s::text)", queue, text) for text in payloads]


def tick(db: "Connection", queue: str = "q") -> int:
    """Ticks whatever the thresholds say; returns the tick's id."""
    value(db, "select pgque.force_next_tick(%s)", queue)
    return value(db, "select pgque.ticker(%s)", queue)


def publish(db: "Connection", *texts: str, queue: str = "q") -> int:
    """Sends, and ticks; returns the tick's id."""
    send(db, *texts, queue=queue)
    return tick(db, queue)


def last_tick(db: "Connection", queue: str = "q") -> int:
    return value(
        db, "select max(tick_id) from pgque.tick where tick_queue = %s", queue_id(db, queue)
    )


def next_batch(db: "Connection", queue: str = "q", consumer: str = "c") -> Any:
    return value(db, "select pgque.next_batch(%s, %s)", queue, consumer)


def finish(db: "Connection", batch: int) -> None:
    value(db, "select pgque.finish_batch(%s)", batch)


def events(db: "Connection", batch: int) -> list[tuple[Any, ...]]:
    return rows(db, "select * from pgque.get_batch_events(%s)", batch)


def payloads(db: "Connection", batch: int) -> list[str]:
    return [row[0] for row in rows(db, "select ev_data from pgque.get_batch_events(%s)", batch)]


def drain(db: "Connection", queue: str = "q", consumer: str = "c") -> list[str]:
    """Consumes all batches that are there; returns the payloads."""
    consumed = []
    while (batch := next_batch(db, queue, consumer)) is not None:
        consumed += payloads(db, batch)
        finish(db, batch)
    return consumed


def received(db: "Connection", queue: str = "q", consumer: str = "c") -> list[str]:
    """Ticks, and consumes all."""
    tick(db, queue)
    return drain(db, queue, consumer)


def event_ids(db: "Connection", batch: int) -> list[int]:
    return [row[0] for row in events(db, batch)]


def open_batch(db: "Connection", *texts: str, queue: str = "q", consumer: str = "c") -> Any:
    """Sends, ticks and opens the batch of that tick."""
    publish(db, *texts, queue=queue)
    return next_batch(db, queue, consumer)


def hold_snapshot(db: "Connection", level: str = "repeatable read") -> "Connection":
    """Begins a transaction; unless it is read committed, it goes on seeing the database of now."""
    db.execute(f"begin isolation level {level}".encode())
    value(db, "select pg_current_snapshot()::text")
    return db


def rotate(db: "Connection", queue: str = "q") -> int:
    """Both steps of a rotation; returns whether it took place."""
    value(db, "select pgque.set_queue_config(%s, 'rotation_period', '1 microsecond')", queue)
    done: int = value(db, "select pgque.maint_rotate_tables_step1(%s)", queue)
    value(db, "select pgque.maint_rotate_tables_step2()")
    return done


def stored_payloads(db: "Connection", queue: str = "q") -> set[str]:
    """What the event tables still hold, consumed or not."""
    found = rows(db, f"select ev_data from pgque.event_{queue_id(db, queue)}")
    return {text for (text,) in found}


def event_tables(db: "Connection") -> str:
    """All queues' event tables, to stand in FROM; at least one queue must exist."""
    found = rows(db, "select queue_data_pfx from pgque.queue order by queue_id")
    return "({}) event".format(" union all ".join(f"select * from {table}" for (table,) in found))


def bloat_positions(db: "Connection") -> None:
    """Adds superseded positions, until there are enough for a compaction."""
    current = "select half, format('pgque.%s_log_%s', log_name, half) from pgque.log"
    ((half, table),) = rows(db, f"{current} where log_name = 'position'")
    db.execute(
        f"insert into {table} (sub_id, pos_seq, sub_last_tick, sub_active, lease_epoch, next_half)"
        f" select sub_id, nr, 1, now(), 0, {half}"
        " from pgque.subscription_base, generate_series("
        "   (select min(pos_seq) from pgque.position_log) - 3000,"
        "   (select min(pos_seq) from pgque.position_log) - 1) nr".encode()
    )


def empty_halves(db: "Connection") -> None:
    """Empties what earlier compactions left, so that the next ones can begin."""
    for log in ("position", "tick"):
        value(db, "select pgque.maint_empty_half(%s)", log)


def compact_positions(db: "Connection") -> int:
    empty_halves(db)
    bloat_positions(db)
    return value(db, "select pgque.maint_compact_positions()")


def compact_ticks(db: "Connection") -> int:
    empty_halves(db)
    return value(db, "select pgque.maint_compact_ticks()")


def bloat_ticks(db: "Connection", count: int = 1200, queue: str = "q") -> None:
    """Many ticks at once, as of an idle time."""
    db.execute(
        "insert into pgque.tick_log"
        " select t.tick_queue, t.tick_id + nr, clock_timestamp(), pgque.tick_snapshot(),"
        "   t.tick_event_seq, t.half"
        " from (select * from pgque.tick where tick_queue = %s order by tick_id desc limit 1) t,"
        "   generate_series(1, %s) nr",
        [queue_id(db, queue), count],
    )


def wait_until_blocked(db: "Connection", blocked: "Connection") -> None:
    """Waits until another connection waits for a lock."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    sql = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    while not value(db, sql, blocked.info.backend_pid):
        assert time.monotonic() < deadline, "the other connection waits for no lock"
        value(db, "select pg_sleep(0.005)::text")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with the functions above as its methods, and others that end with it."""

    url: str

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._others = ExitStack()

    def __exit__(self, *error: Any) -> None:
        self._others.close()
        super().__exit__(*error)

    def another(self) -> "Connection":
        """Opens one more connection to the same database."""
        return self._others.enter_context(connect(self.url))

    def blocked(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Calls a function with another connection; returns when that waits for a lock."""
        connection = self.another()
        pool = self._others.enter_context(ThreadPoolExecutor(1))
        answer = pool.submit(function, connection, *arguments)
        self.another().wait_until_blocked(connection)
        return answer

    rows = rows
    value = value
    make_queue = make_queue
    make_again = make_again
    queue_id = queue_id
    event_tables = event_tables
    send = send
    tick = tick
    publish = publish
    last_tick = last_tick
    next_batch = next_batch
    open_batch = open_batch
    events = events
    event_ids = event_ids
    payloads = payloads
    finish = finish
    drain = drain
    received = received
    stored_payloads = stored_payloads
    hold_snapshot = hold_snapshot
    rotate = rotate
    bloat_positions = bloat_positions
    bloat_ticks = bloat_ticks
    compact_positions = compact_positions
    compact_ticks = compact_ticks
    empty_halves = empty_halves
    wait_until_blocked = wait_until_blocked
