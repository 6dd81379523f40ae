"""Maintenance that holds locks does not wait for a standby: its commit takes part in no promise."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.halves import catch_up
from tests.support.metrics import bloat_counters
from tests.support.queues import (
    PATIENCE_SECONDS,
    Connection,
    bloat_positions,
    bloat_ticks,
    connect,
    make_queue,
    send,
    value,
)

Another = Callable[[], Connection]
Maintain = Callable[[str], int]


@pytest.fixture
def standby_that_never_answers(server: Any, db: Connection) -> Iterator[None]:
    """What another session commits waits for ever; this one's commits do not ask."""
    db.execute("set synchronous_commit = local")
    make = "alter system set synchronous_standby_names = 'nobody'"
    with connect(server.url) as admin:
        admin.execute("alter system set synchronous_commit = local")
        admin.execute(make.encode())
        value(admin, "select pg_reload_conf()")
        while value(db, "show synchronous_standby_names") != "nobody":
            value(db, "select pg_sleep(0.01)::text")
        admin.execute(
            f"alter database {db.info.dbname} set synchronous_commit = remote_apply".encode()
        )
        yield
        admin.execute("alter system reset synchronous_standby_names")
        admin.execute("alter system reset synchronous_commit")
        value(admin, "select pg_reload_conf()")


@pytest.fixture
def maintain(
    another: Another, background: ThreadPoolExecutor, standby_that_never_answers: None
) -> Maintain:
    """Calls a step of maintenance; fails if it does not end."""
    connection = another()
    assert value(connection, "show synchronous_commit") == "remote_apply"

    def call(step: str) -> int:
        done: int = background.submit(value, connection, f"select pgque.{step}").result(
            PATIENCE_SECONDS
        )
        return done

    return call


def test_every_step_that_holds_locks_ends(db: Connection, maintain: Maintain) -> None:
    make_queue(db)
    bloat_ticks(db, 2100)
    bloat_positions(db)
    catch_up(db, "c")
    for log in ("tick", "position"):
        assert maintain(f"maint_compact_{log}s()") > 0
        assert maintain(f"maint_empty_half('{log}')") == 1
    bloat_counters(db)
    assert maintain("maint_compact_counters()") > 0
    db.execute(
        "insert into pgque.history (queue_id, counted_at, event_seq)"
        " select queue_id, now() - interval '1 week', 1 from pgque.queue"
    )
    assert maintain("maint_compact_history()") == 1
    send(db, "a")
    value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    assert maintain("maint_rotate_tables_step1('q')") == 1
    value(db, "select pgque.drop_queue('q', true)")
    assert maintain("maint_event_tables()") == 1
