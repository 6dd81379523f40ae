"""Debian's pgqd ticks, rotates and retries queues here, with the rights of pgq_admin alone."""

from pathlib import Path

import pytest

from tests.support.addons.pgq_programs import pgqd
from tests.support.queues.sql import Connection
from tests.support.runner.waiting import wait_until
from tests.support.servers.logins import as_login

pytestmark = pytest.mark.program("pgqd")


def test_it_does_all_that_a_queue_needs(tmp_path: Path, db: Connection, database_url: str) -> None:
    db.value("select pgq.create_queue('q')")
    db.execute("update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0'")
    db.value("select pgq.register_consumer('q', 'c')")
    next_batch = "select pgq.next_batch('q', 'c')"
    current = "select queue_cur_table from pgq.queue where queue_name = 'q'"
    with pgqd(tmp_path, as_login(database_url, "pgq_admin")) as process:
        # It ticks, and brings retries back.
        db.value("select pgq.insert_event('q', 't', 'a')")
        wait_until(lambda: db.value(next_batch) is not None)
        batch = db.value(next_batch)
        db.value("select pgq.event_retry(%s, 1, 0)", batch)
        db.value("select pgq.finish_batch(%s)", batch)
        again = f"select ev_data, ev_retry from pgq.get_batch_events(({next_batch}))"

        def is_back() -> bool:
            """Says whether a batch has events. That of a queue that becomes quiet has none."""
            found = db.value(next_batch)
            if found is None or db.rows(again):
                return found is not None
            db.value("select pgq.finish_batch(%s)", found)
            return False

        wait_until(is_back)
        assert db.rows(again) == [("a", 1)]
        db.value(f"select pgq.finish_batch(({next_batch}))")

        # It rotates.
        assert db.value(current) == 0
        db.execute("update pgq.queue set queue_rotation_period = '0.1 s'")
        wait_until(lambda: db.value(current) == 1)
        wait_until(lambda: db.value("select queue_switch_step2 from pgq.queue") is not None)
        assert process.poll() is None, (tmp_path / "pgqd.log").read_text()
