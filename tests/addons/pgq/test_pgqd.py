"""Debian's pgqd ticks, rotates and retries queues here, with the rights of pgq_admin alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.logins import as_login
from tests.support.pgq_programs import pgqd, wait_until
from tests.support.queues import Connection, rows, value

pytestmark = pytest.mark.program("pgqd")


@pytest.fixture(autouse=True)
def daemon(tmp_path: Path, db: Connection, database_url: str) -> Iterator[None]:
    value(db, "select pgq.create_queue('q')")
    db.execute("update pgq.queue set queue_ticker_max_count = 1, queue_ticker_max_lag = '0'")
    with pgqd(tmp_path, as_login(database_url, "pgq_admin")) as process:
        yield
        assert process.poll() is None, (tmp_path / "pgqd.log").read_text()


def test_it_ticks(db: Connection) -> None:
    value(db, "select pgq.register_consumer('q', 'c')")
    value(db, "select pgq.insert_event('q', 't', 'a')")
    wait_until(lambda: value(db, "select pgq.next_batch('q', 'c')") is not None)


def test_it_brings_retries_back(db: Connection) -> None:
    value(db, "select pgq.register_consumer('q', 'c')")
    value(db, "select pgq.insert_event('q', 't', 'a')")
    wait_until(lambda: value(db, "select pgq.next_batch('q', 'c')") is not None)
    batch = value(db, "select pgq.next_batch('q', 'c')")
    value(db, "select pgq.event_retry(%s, 1, 0)", batch)
    value(db, "select pgq.finish_batch(%s)", batch)
    again = "select ev_data, ev_retry from pgq.get_batch_events(pgq.next_batch('q', 'c'))"
    wait_until(lambda: value(db, "select pgq.next_batch('q', 'c')") is not None)
    assert rows(db, again) == [("a", 1)]


def test_it_rotates(db: Connection) -> None:
    value(db, "select pgq.insert_event('q', 't', 'a')")
    current = "select queue_cur_table from pgq.queue"
    assert value(db, current) == 0
    db.execute("update pgq.queue set queue_rotation_period = '0.1 s'")
    wait_until(lambda: value(db, current) == 1)
    wait_until(lambda: value(db, "select queue_switch_step2 from pgq.queue") is not None)


def test_it_calls_the_functions_of_queue_extra_maint(db: Connection) -> None:
    db.execute("create table called (queue text)")
    db.execute(
        "create function public.extra(text) returns integer language sql security definer"
        " as 'insert into public.called values ($1); select 0'"
    )
    value(db, "select pgq.allow_extra_maint('public.extra')")
    db.execute("update pgq.queue set queue_extra_maint = '{public.extra}'")
    wait_until(lambda: rows(db, "select distinct queue from called") == [("q",)])


def test_it_gives_a_queue_of_pgque_its_views(db: Connection) -> None:
    value(db, "select pgque.create_queue('other')")
    wait_until(
        lambda: (
            value(
                db,
                "select to_regclass(queue_data_pfx || '_0') from pgq.queue"
                " where queue_name = 'other'",
            )
            is not None
        )
    )
