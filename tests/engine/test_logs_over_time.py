"""The logs of positions and ticks when a standby is asked, and when there is a day in them."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.queues import (
    Connection,
    bloat_positions,
    bloat_ticks,
    connect,
    finish,
    last_tick,
    make_queue,
    next_batch,
    payloads,
    rows,
    send,
    tick,
    value,
)
from tests.support.replicas import Replica, replicas, wait_for

LONGEST_WAIT_SECONDS = 5
TICKS_OF_A_DAY = 864_000
MEMORY_BYTES = 200 * 1024 * 1024

STANDBY = """
hot_standby_feedback = on
wal_receiver_status_interval = 1s
max_standby_streaming_delay = -1
"""
HALVES = "select log_name, half from pgque.log order by 1"


class TestAReportOnAStandby:
    """Commits on the primary wait until the standby has applied them, and it waits for reports."""

    @pytest.fixture
    def pair(self, server: Any) -> Iterator[tuple[Replica, Replica]]:
        with replicas(server) as made:
            primary = made.primary(settings=STANDBY)
            standby = made.standby(primary)
            with connect(primary.url()) as admin:
                wait_for(admin, "select count(*) = 1 from pg_stat_replication")
                admin.execute("alter system set synchronous_standby_names = '*'")
                admin.execute("alter system set synchronous_commit = remote_apply")
                value(admin, "select pg_reload_conf()")
            yield primary, standby

    def test_that_has_read_the_logs_makes_no_consumer_wait(
        self, pair: tuple[Replica, Replica]
    ) -> None:
        primary, standby = pair
        waits = []
        read = "select sub_last_tick, (select count(*) from pgque.tick) from pgque.subscription"
        with connect(primary.url()) as db, connect(standby.url()) as report:
            make_queue(db)
            value(db, "select pgque.set_metadata_rotation_period('0')::text")
            wait_for(report, "select count(*) = 1 from pgque.subscription")
            with report.transaction():
                report.execute("set transaction isolation level repeatable read")
                before = rows(report, read)
                wait_for(db, "select backend_xmin is not null from pg_stat_replication")
                for number in range(10):
                    bloat_ticks(db, 2100)
                    value(db, "select pgque.register_consumer_at('q', 'c', %s)", last_tick(db))
                    bloat_positions(db)
                    value(db, "select pgque.maint()")
                    send(db, str(number))
                    tick(db)
                    began = time.monotonic()
                    batch = next_batch(db)
                    waits.append(time.monotonic() - began)
                    assert payloads(db, batch) == [str(number)]
                    finish(db, batch)
                assert rows(db, HALVES) == [("position", 1), ("tick", 1)]
                assert rows(report, read) == before
            wait_for(db, "select pgque.maint() >= 0 and bool_and(half = 0) from pgque.log")
        assert max(waits) < LONGEST_WAIT_SECONDS


def anonymous_bytes(db: Connection) -> int:
    """What a session has allocated for itself."""
    status = Path(f"/proc/{db.info.backend_pid}/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line[:7] == "RssAnon")
    return int(kilobytes) * 1024


def watched(maintaining: Future[Any], worker: Connection, poll: Connection) -> tuple[float, int]:
    """Polls until maintenance is over; the longest poll, and the most memory it took."""
    longest, most = 0.0, 0
    while not maintaining.done():
        began = time.monotonic()
        next_batch(poll, consumer="fast")
        longest = max(longest, time.monotonic() - began)
        most = max(most, anonymous_bytes(worker))
    maintaining.result()
    return longest, most


@pytest.mark.slow
def test_a_day_of_ticks_behind_a_lagging_consumer_is_compacted_beside_consumers(
    db: Connection, another: Any, background: ThreadPoolExecutor, record_property: Any
) -> None:
    make_queue(db, consumers=("fast", "slow"))
    bloat_ticks(db, TICKS_OF_A_DAY)
    half_a_day = TICKS_OF_A_DAY // 2 + 1000
    value(db, "select pgque.register_consumer_at('q', 'slow', %s)", half_a_day)
    value(db, "select pgque.register_consumer_at('q', 'fast', %s)", last_tick(db))
    worker, poll = another(), another()
    value(worker, "select pgque.maint_copy_ticks() - pgque.maint_copy_ticks()")  # plans it
    before = anonymous_bytes(worker)
    longest, most = 0.0, 0
    for _ in range(6):
        maintaining = background.submit(value, worker, "select pgque.maint()")
        one = watched(maintaining, worker, poll)
        longest, most = max(longest, one[0]), max(most, one[1])
    record_property("longest_poll_seconds", longest)
    record_property("memory_bytes", most - before)
    print(f"longest poll {longest * 1000:.0f} ms, {(most - before) // 1024} kB")
    assert rows(db, HALVES) == [("position", 0), ("tick", 0)]
    assert value(db, "select min(tick_id) from pgque.tick") == half_a_day
    assert longest < LONGEST_WAIT_SECONDS
    assert most - before < MEMORY_BYTES
