"""Maintenance and a standby: commits with locks wait for none, and none waits for reports on it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.queues.halves import catch_up
from tests.support.queues.sql import PATIENCE_SECONDS, Connection, connect
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import synchronous_pair, wait_for

Maintain = Callable[[str], int]


@pytest.fixture
def standby_that_never_answers(server: Any, db: Connection) -> Iterator[None]:
    """What another session commits waits for ever; this one's commits do not ask."""
    db.execute("set synchronous_commit = local")
    make = "alter system set synchronous_standby_names = 'nobody'"
    with connect(server.url) as admin:
        admin.execute("alter system set synchronous_commit = local")
        admin.execute(make.encode())
        admin.value("select pg_reload_conf()")
        while db.value("show synchronous_standby_names") != "nobody":
            db.value("select pg_sleep(0.01)::text")
        admin.execute(
            f"alter database {db.info.dbname} set synchronous_commit = remote_apply".encode()
        )
        yield
        admin.execute("alter system reset synchronous_standby_names")
        admin.execute("alter system reset synchronous_commit")
        admin.value("select pg_reload_conf()")


@pytest.fixture
def maintain(
    db: Connection, background: ThreadPoolExecutor, standby_that_never_answers: None
) -> Maintain:
    """Calls a step of maintenance; fails if it does not end."""
    connection = db.another()
    assert connection.value("show synchronous_commit") == "remote_apply"

    def call(step: str) -> int:
        return background.submit(Connection.value, connection, f"select pgque.{step}").result(
            PATIENCE_SECONDS
        )

    return call


def test_every_step_that_holds_locks_ends(q: Connection, maintain: Maintain) -> None:
    q.bloat_ticks(2100)
    q.bloat_positions()
    catch_up(q, "c")
    for log in ("tick", "position"):
        assert maintain(f"maint_compact_{log}s()") > 0
        assert maintain(f"maint_empty_half('{log}')") == 1
    q.send("a")
    q.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
    assert maintain("maint_rotate_tables_step1('q')") == 1
    q.value("select pgque.drop_queue('q', true)")
    assert maintain("maint_event_tables()") == 1


LONGEST_WAIT_SECONDS = 5

# With a slot, it is there.
REPORTED = """
select bool_or(xmin is not null)
from (select backend_xmin from pg_stat_replication
      union all select xmin from pg_replication_slots) reported (xmin)
"""
HALVES = "select log_name, half from pgque.log order by 1"


class TestAReportOnAStandby:
    """Commits on the primary wait until the standby has applied them, and it waits for reports."""

    @pytest.fixture(params=["", "--slot=standby --create-slot"], ids=["", "with a slot"])
    def pair(self, request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Postgres]]:
        with synchronous_pair(*request.param.split()) as made:
            yield made

    def test_that_has_read_the_logs_makes_no_consumer_wait(
        self, pair: tuple[Postgres, Postgres]
    ) -> None:
        primary, standby = pair
        waits = []
        read = "select sub_last_tick, (select count(*) from pgque.tick) from pgque.subscription"
        with connect(primary.url) as db, connect(standby.url) as report:
            db.make_queue()
            db.execute("update pgque.config set metadata_rotation_period = '0'")
            wait_for(report, "select count(*) = 1 from pgque.subscription")
            with report.transaction():
                report.execute("set transaction isolation level repeatable read")
                before = report.rows(read)
                wait_for(db, REPORTED)
                for number in range(10):
                    db.bloat_ticks(2100)
                    db.value("select pgque.register_consumer_at('q', 'c', %s)", db.last_tick())
                    db.bloat_positions()
                    db.value("select pgque.maint()")
                    db.publish(str(number))
                    began = time.monotonic()
                    batch = db.next_batch()
                    waits.append(time.monotonic() - began)
                    assert db.payloads(batch) == [str(number)]
                    db.finish(batch)
                assert db.rows(HALVES) == [("position", 1), ("tick", 1)]
                assert report.rows(read) == before
            wait_for(db, "select pgque.maint() >= 0 and bool_and(half = 0) from pgque.log")
        assert max(waits) < LONGEST_WAIT_SECONDS
