"""Truncation waits for reports on a standby, also for those that began while it waited."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.addons.conftest import addon_sql
from tests.support.addons import messages, serial
from tests.support.queues.sql import Connection, connect
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import synchronous_pair, wait_for

LONGEST_WAIT_SECONDS = 5


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    with synchronous_pair() as made:
        yield made


def serial_table(db: Connection) -> str:
    """Makes a serial queue, whose half with an entry that was read waits to be emptied."""
    queue = serial.make_sp(db)
    serial.publish(db, "a")
    serial.consume(db)
    serial.rotate(db)
    return serial.tables(db, queue, "entry")[0]


def message_table(db: Connection) -> str:
    """Makes a message queue, whose part with a message that was acked waits to be emptied."""
    messages.make_queue(db)
    messages.publish(db, 1)
    messages.drain(db)
    messages.rotate(db)
    return "postgremq.state_0"


@pytest.mark.parametrize(
    ("addon", "make_table"), [("qgres", serial_table), ("postgremq", message_table)]
)
def test_report_that_began_after_the_switch_makes_no_publisher_wait(
    pair: tuple[Postgres, Postgres], addon: str, make_table: Any
) -> None:
    primary, standby = pair
    maintain = f"select {addon}.maint()"
    with (
        connect(primary.url) as db,
        connect(primary.url) as holder,
        connect(standby.url) as report,
    ):
        db.execute(addon_sql(addon))
        holder.execute("begin isolation level repeatable read")
        holder.value("select count(*) from pgque.queue")
        table = make_table(db)
        count = f"select count(*) > 0 from {table}"
        with report.transaction():
            report.execute("set transaction isolation level repeatable read")
            assert report.value(count)
            seen = report.value("select txid_snapshot_xmin(txid_current_snapshot())::text")
            wait_for(db, "select backend_xmin::text = %s from pg_stat_replication", seen)
            db.execute("update pgque.snapshot_wait set marked_at = marked_at - interval '1 hour'")
            db.value(maintain)
            holder.execute("rollback")
            began = time.monotonic()
            for _ in range(3):
                db.value(maintain)
            if addon == "qgres":
                serial.publish(db, "b")
            else:
                messages.publish(db, 2)
            assert time.monotonic() - began < LONGEST_WAIT_SECONDS
            assert report.rows(count) == [(True,)]
        wait_for(db, f"{maintain} >= 0 and pg_relation_size('{table}') = 0")
