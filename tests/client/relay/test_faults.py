"""What others do to a relay, its slot, its publication and its tables loses and repeats nothing."""

import re
import threading

import pytest

from pgque_dagster.client import InvalidArgument, PgqueError
from pgque_dagster.client.errors import ConnectionFailed, DatabaseUnready
from pgque_dagster.client.relay.relay import Relay
from pgque_dagster.client.relay.setup import begin_relay, end_relay, is_relayed
from tests.client.relay.conftest import QUEUE, TRIGGERS, Source
from tests.conftest import INSTALL_SQL, new_server
from tests.support.queues.sql import connect, refused, rows, value
from tests.support.servers.logins import as_login

LONG = "repeat(md5(random()::text), 200)"
_ACTIVE = """
select pg_terminate_backend(active_pid) from pg_replication_slots
where database = current_database()
"""
_PARTS = """
create table p (id int primary key) partition by range (id);
create table p1 partition of p for values from (0) to (10);
"""


def kinds(source: Source) -> list[str]:
    return [kind for _, kind, _ in source.events()]


def set_all(source: Source, *settings: str) -> None:
    for setting in settings:
        source.db.execute(f"alter database {source.db.info.dbname} set {setting}".encode())


def capture_both(source: Source, table: str) -> None:
    source.capture(table)
    rows(source.db, f"select pgque.capture('{table}', '{TRIGGERS}')")


def test_time_limits_of_a_role_or_a_database_do_not_end_a_relay(source: Source) -> None:
    source.db.execute("create table t (id int primary key)")
    source.capture("t")
    limits = ["statement", "lock", "idle_in_transaction_session", "idle_session"]
    if source.db.info.server_version >= 170000:
        limits.append("transaction")
    set_all(source, *(f"{limit}_timeout = '20ms'" for limit in limits))
    source.db.execute("insert into t select generate_series(1, 20000)")
    made: list[int] = []
    with source.relay() as relay:
        other = threading.Thread(target=lambda: made.append(source.tick()))
        other.start()
        while not relay.is_wanted():
            pass
        assert relay.move().events == 20000
        rows(source.db, "select pg_sleep(0.05)")
    other.join()
    assert len(made) == 1


def test_settings_of_a_database_do_not_change_texts(source: Source) -> None:
    set_all(
        source,
        *("datestyle = 'sql, dmy'", "timezone = 'Asia/Kolkata'", "extra_float_digits = -5"),
        *("bytea_output = 'escape'", "intervalstyle = 'sql_standard'", "search_path = 'public'"),
        *("client_encoding = 'LATIN1'", "quote_all_identifiers = on", "array_nulls = off"),
        *("standard_conforming_strings = off", "default_transaction_isolation = serializable"),
    )
    source.db.execute(
        "create table t (id int primary key, r regclass, p regproc, ty regtype, b bytea, f float8,"
        " i interval, ts timestamptz, word text)"
    )
    capture_both(source, "t")
    source.db.execute(
        r"insert into t values (1, 't', 'pgque.version', 'pgque.queue', '\x00ff', 0.3::float8,"
        " '1 day 3:00', '2024-02-29 01:02:03+02', 'é')"
    )
    source.tick()
    assert source.events() == source.events(TRIGGERS)


def test_changes_of_all_kinds_of_statements_are_those_of_triggers(source: Source) -> None:
    source.db.execute("create table t (id int primary key, n int)")
    source.db.execute("create table c (id int primary key, t int references t)")
    capture_both(source, "t")
    capture_both(source, "c")
    with source.db.transaction():
        # More than a transaction keeps in the memory of all.
        for number in range(100):
            with source.db.transaction():
                source.db.execute(f"insert into t values ({number}, 1)".encode())
    source.db.execute("insert into t values (1, 9) on conflict (id) do update set n = excluded.n")
    with source.db.cursor().copy("copy t from stdin") as copy:
        copy.write("1000\t1\n")
    source.db.execute(
        "with x as (update t set n = 3 returning n) insert into c select 1 from x limit 1"
    )
    source.db.execute("insert into t values (2000, 1); truncate t cascade")
    source.tick()
    assert sorted(source.events()) == sorted(source.events(TRIGGERS))


def test_a_prepared_transaction_comes_with_its_commit_even_after_a_crash() -> None:
    with new_server(max_prepared_transactions="2") as server:
        with connect(server.url) as db:
            db.execute(INSTALL_SQL.read_bytes())
            db.make_queue(QUEUE)
            begin_relay(server.url, QUEUE)
            source = Source(server.url, db)
            db.execute("create table t (id int primary key)")
            source.capture("t")
            db.execute("begin; insert into t values (1); prepare transaction 'a'")
            db.execute("insert into t values (2)")
            ticks = [source.tick()]
        server.crash()
        with connect(server.url) as db:
            source = Source(server.url, db)
            ticks.append(source.tick())
            db.execute("commit prepared 'a'")
            ticks.append(source.tick())
            assert [len(source.at(each)) for each in ticks] == [1, 1, 2]


def test_an_update_of_a_row_with_a_long_key_is_only_an_update(source: Source) -> None:
    source.db.execute("create table t (id text primary key, n int, more text)")
    source.db.execute("alter table t alter id set storage external")
    capture_both(source, "t")
    source.db.execute(
        "insert into t select string_agg(md5(g::text), ''), 1, repeat('x', 1000)"
        " from generate_series(1, 80) g"
    )
    source.db.execute("update t set n = 2")
    source.tick()
    assert source.events() == source.events(TRIGGERS)


def test_long_values_are_completed_whatever_the_names_are(source: Source) -> None:
    source.db.execute('create table "a%s" (pgque_nr int primary key, k0 int, "b%s" text)')
    source.db.execute('alter table "a%s" alter "b%s" set storage external')
    source.capture('"a%s"')
    source.db.execute(f'insert into "a%s" values (1, 0, {LONG})')
    source.db.execute('update "a%s" set k0 = 1')
    source.tick()
    assert kinds(source) == ["insert", "update"]


def test_a_table_is_copied_whose_long_values_may_not_be_read(source: Source) -> None:
    login = as_login(source.url, "pgque_admin")
    (user,) = re.findall(r"//(\w+)", login)
    source.db.execute(f"alter role {user} replication".encode())
    source.db.execute("create table t (id int primary key, n int, long text)")
    source.db.execute("alter table t alter long set storage external")
    source.capture("t")
    source.db.execute(f"insert into t values (1, 1, {LONG}); update t set n = 2")
    with Relay.of(login, QUEUE) as relay:
        relay.tick()
    assert kinds(source) == ["insert", "update", "copy"]
    source.db.execute(f"alter role {user} noreplication".encode())


def test_tables_are_refused_of_which_the_wal_lacks_changes(source: Source) -> None:
    source.db.execute("create table parent (id int primary key)")
    source.db.execute("create table child () inherits (parent)")
    with refused("PQ005", "inherit"):
        source.capture("parent")
    source.db.execute(_PARTS)
    source.capture("p")
    source.db.execute("create unlogged table p2 partition of p for values from (10) to (20)")
    problem = value(source.db, "select problem from pgque.captured_tables('wal')")
    assert problem == "it needs alter table public.p2 set logged"


def test_a_partition_that_was_unlogged_has_another_file(source: Source) -> None:
    source.db.execute(_PARTS)
    source.capture("p")
    facts = "select pgque.table_facts('p', 'wal') -> 'files'"
    before = value(source.db, facts)
    source.db.execute("alter table p1 set unlogged")
    source.db.execute("insert into p values (1)")
    source.db.execute("alter table p1 set logged")
    source.tick()
    assert not source.events()
    assert value(source.db, facts) != before


def test_a_relay_that_stood_still_does_not_repeat_what_another_moved(source: Source) -> None:
    source.db.execute("create table t (id int primary key)")
    source.capture("t")
    source.tick()
    with source.relay() as old:
        source.db.execute("insert into t values (1)")
        # As wal_sender_timeout does.
        source.db.execute(_ACTIVE)
        source.tick()
        with pytest.raises(ConnectionFailed, match="this one stalled"):
            old.tick()
    source.tick()
    assert kinds(source) == ["insert"]


def test_a_relay_is_not_dropped_while_it_runs(source: Source) -> None:
    source.db.execute("create table t (id int primary key)")
    source.capture("t")
    with source.relay() as relay:
        relay.move()
        with pytest.raises(DatabaseUnready, match="is active for"):
            end_relay(source.url, QUEUE)
        source.db.execute("insert into t values (1)")
        relay.move()
    assert kinds(source) == ["insert"]
    end_relay(source.url, QUEUE)


def test_a_relay_whose_publication_was_dropped_stops(source: Source) -> None:
    source.tick()
    with source.relay() as relay:
        source.db.execute("drop publication pgque_1")
        with pytest.raises(InvalidArgument, match=r"publication is gone.*pgque relay wal --drop"):
            relay.move()
    # A new one would lack what was written in between.
    begin_relay(source.url, QUEUE)
    with pytest.raises(InvalidArgument, match="is gone"):
        source.tick()


def test_a_queue_whose_relay_cannot_begin_gets_its_ticks() -> None:
    with new_server(max_replication_slots="0") as server, connect(server.url) as db:
        db.execute(INSTALL_SQL.read_bytes())
        db.make_queue(QUEUE)
        with pytest.raises(PgqueError, match="max_replication_slots"):
            begin_relay(server.url, QUEUE)
        assert not is_relayed(db, QUEUE)
        rows(db, "select pgque.force_next_tick(%s)", QUEUE)
        assert value(db, "select pgque.ticker(%s)", QUEUE) == 2


def test_a_database_whose_texts_nobody_can_read_is_refused(source: Source) -> None:
    create = "create database t_ascii encoding 'SQL_ASCII' locale 'C' template template0"
    source.db.execute(create)
    with pytest.raises(InvalidArgument, match="SQL_ASCII"):
        begin_relay(source.url.replace(source.db.info.dbname, "t_ascii"), QUEUE)
    source.db.execute("drop database t_ascii")
