"""A relay goes on with a promoted standby that has its slot; else it stops with the reason."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from pgque_dagster.client import InvalidArgument, PgqueError
from pgque_dagster.client.relay.setup import begin_relay
from pgque_dagster.client.relaying import Relaying
from tests.client.relay.conftest import QUEUE, Source
from tests.conftest import server_version
from tests.support.queues.sql import connect, rows, value
from tests.support.servers.postgres import Postgres
from tests.support.servers.standbys import cut_off, replicas, wait_for

_SYNCED = """
select count(*) = 1 from pg_replication_slots
where slot_type = 'logical' and not temporary and confirmed_flush_lsn >= %s::pg_lsn
"""


@contextmanager
def relayed_pair(**settings: str) -> Iterator[tuple[Postgres, Postgres]]:
    """A primary with a relay that has moved the first row of t, and its standby."""
    with replicas() as servers:
        primary = servers.primary(wal_level="logical", hot_standby_feedback="on", **settings)
        with connect(primary.url) as db:
            db.make_queue(QUEUE)
            begin_relay(primary.url, QUEUE)
            source = Source(primary.url, db)
            db.execute("create table t (id int primary key)")
            source.capture("t")
            db.execute("insert into t values (0)")
            source.tick()
        yield primary, servers.standby(primary, "--create-slot", "--slot=standby")


def write(url: str, ended: threading.Event) -> None:
    with connect(url) as db:
        number = 0
        while not ended.is_set():
            number += 1
            try:
                db.execute(f"insert into t values ({number})".encode())
            except psycopg.OperationalError:
                return


def relay(runner: Relaying) -> None:
    try:
        runner.run()
    except PgqueError:
        return


def test_a_slot_is_not_ahead_of_what_was_streamed_after_it(source: Source) -> None:
    query = "select confirmed_flush_lsn = lsn from pgque.relay join pg_replication_slots"
    with source.relay() as relay:
        relay.tick()
        relay.tick()
        assert value(source.db, f"{query} on slot_name = slot") is False
        relay.move()
        wait_for(source.db, f"{query} on slot_name = slot")


@pytest.mark.skipif(server_version() < 17, reason="it has no slots that standbys have too")
def test_a_relay_goes_on_with_a_standby_that_has_its_slot() -> None:
    with relayed_pair(sync_replication_slots="on") as (primary, standby):
        with connect(primary.url) as db:
            db.execute("alter system set synchronized_standby_slots = 'standby'")
            rows(db, "select pg_reload_conf()")
        ended, runner = threading.Event(), Relaying(primary.url, QUEUE)
        threads = [
            threading.Thread(target=write, args=(primary.url, ended)),
            threading.Thread(target=relay, args=(runner,)),
        ]
        with connect(primary.url) as db, connect(standby.url) as there:
            for thread in threads:
                thread.start()
            for _ in range(3):
                # A slot is copied once the primary's does not need what the standby lacks.
                position = value(db, "select pg_log_standby_snapshot()::text")
                wait_for(there, _SYNCED, position)
        primary.stop("immediate")
        ended.set()
        runner.stop()
        for thread in threads:
            thread.join()
        standby.promote()
        with connect(standby.url) as db:
            source = Source(standby.url, db)
            db.execute("insert into t values (-1)")
            source.tick()
            found = rows(db, "select (ev_data::json ->> 'id')::int from pgque.event_1 order by 1")
            assert found == rows(db, "select id from t order by 1")
            assert len(found) > 2


def test_a_relay_stops_with_a_standby_that_lacks_its_slot() -> None:
    with relayed_pair() as (primary, standby):
        with connect(standby.url) as db:
            assert "is gone" in value(db, "select problem from pgque.relays()")
        cut_off(standby, primary)
        primary.stop("immediate")
        standby.promote()
        lost = pytest.raises(InvalidArgument, match=r"is gone.*`pgque relay wal --drop`")
        with connect(standby.url) as db, lost:
            Source(standby.url, db).tick()
